#include "kernels/common/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(ThreadPool, RunsEachThreadOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<std::atomic<int>> calls(threads);
      pool.Run([&](int thread) { calls[thread].fetch_add(1); });
      for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, ParallelForCoversEachIndexOnce) {
  ThreadPool pool(3);
  for (int64_t count : {0, 1, 2, 3, 7, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    pool.ParallelFor(count, [&](int64_t i, int) { calls[i].fetch_add(1); });
    for (const auto& calls_of_index : calls) EXPECT_EQ(calls_of_index.load(), 1);
  }
}

// Threads that went to sleep between two calls must wake up.
TEST(ThreadPool, WakesSleepers) {
  ThreadPool pool(4);
  std::atomic<int> calls{0};
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.Run([&](int) { calls.fetch_add(1); });
  }
  EXPECT_EQ(calls.load(), 80);
}

}  // namespace
}  // namespace quire
