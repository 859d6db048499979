// Fork-join pool for kernels: the caller is thread 0, the others wait for the next call.
//
// Waiting spins for some microseconds and then sleeps on a futex, so an idle engine costs nothing
// and a busy neighbour is not fought with spinning (cpu figures: pure spinning loses up to 20x on a
// shared machine). Run() is called by one thread at a time, never from inside a task.
// No allocation in Run or ParallelFor.
#ifndef QUIRE_KERNELS_COMMON_THREAD_POOL_H_
#define QUIRE_KERNELS_COMMON_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace quire {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // Requires num_threads >= 1; starts num_threads - 1.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls task(thread_index) once on each thread and returns when all are done.
  void Run(absl::FunctionRef<void(int)> task);

  // Calls body(index, thread_index) for each index in [0, count), handed out one by one to whoever
  // is free (a slow core takes fewer). Runs on the caller alone if count is 1.
  void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t, int)> body);

 private:
  void WorkerLoop(int thread_index);

  const int num_threads_;
  std::vector<std::thread> threads_;
  absl::FunctionRef<void(int)>* task_ = nullptr;  // written before generation_ is raised
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int32_t> num_running_{0};
  alignas(64) std::atomic<int32_t> num_asleep_{0};
  alignas(64) std::atomic<int64_t> next_index_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COMMON_THREAD_POOL_H_
