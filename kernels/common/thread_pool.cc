#include "kernels/common/thread_pool.h"

#include "common/status_macros.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define QUIRE_PAUSE() _mm_pause()
#else
#define QUIRE_PAUSE()
#endif

namespace quire {
namespace {

// About 20 us at 3 GHz: longer than the serial stretches between two kernels of a step, shorter than
// what an operating system's time slice would waste.
constexpr int kSpins = 600;

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  QUIRE_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(absl::FunctionRef<void(int)> task) {
  if (num_threads_ == 1) {
    task(0);
    return;
  }
  task_ = &task;
  num_running_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1);
  if (num_asleep_.load() > 0) generation_.notify_all();
  task(0);
  for (int spins = 0;; ++spins) {
    const int32_t running = num_running_.load(std::memory_order_acquire);
    if (running == 0) break;
    if (spins < kSpins) {
      QUIRE_PAUSE();
    } else {
      num_running_.wait(running, std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop(int thread_index) {
  uint32_t seen = 0;
  while (true) {
    uint32_t generation = generation_.load();
    for (int spins = 0; generation == seen; ++spins, generation = generation_.load()) {
      if (spins < kSpins) {
        QUIRE_PAUSE();
        continue;
      }
      // Counted before the value is read again inside wait(): a Run in between sees the sleeper.
      num_asleep_.fetch_add(1);
      generation_.wait(seen);
      num_asleep_.fetch_sub(1);
    }
    seen = generation;
    if (stop_.load()) return;
    (*task_)(thread_index);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running_.notify_one();
  }
}

void ThreadPool::ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  if (count == 1 || num_threads_ == 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  next_index_.store(0, std::memory_order_relaxed);
  Run([&](int thread_index) {
    while (true) {
      const int64_t i = next_index_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      body(i, thread_index);
    }
  });
}

}  // namespace quire
