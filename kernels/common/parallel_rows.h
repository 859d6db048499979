// Rows of an elementwise kernel over the threads of a pool, only where a fork pays.
#ifndef QUIRE_KERNELS_COMMON_PARALLEL_ROWS_H_
#define QUIRE_KERNELS_COMMON_PARALLEL_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/common/thread_pool.h"

namespace quire {

// 13 us of RMSNorm on one AVX2 core. A fork costs 2 us if the threads still spin but 25 us and more
// if they sleep or share their core (rms_norm_bench, 32 rows of 1024 on a busy machine: 6 us of
// work alone, 32 us forked), so less than two such pieces stay on the caller: every decode step of
// one row, and of 64 rows of 1024.
inline constexpr int64_t kMinElementsPerChunk = 65536;

// Calls body(begin, end) on disjoint ranges that cover [0, num_rows). A row is never split.
inline void ParallelRows(ThreadPool& pool, int64_t num_rows, int64_t elements_per_row,
                         absl::FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t rows_per_chunk =
      std::max<int64_t>(1, kMinElementsPerChunk / std::max<int64_t>(1, elements_per_row));
  if (num_rows <= 1 || num_rows * elements_per_row < 2 * kMinElementsPerChunk ||
      pool.num_threads() == 1) {
    body(0, num_rows);
    return;
  }
  const int64_t num_chunks = (num_rows + rows_per_chunk - 1) / rows_per_chunk;
  pool.ParallelFor(num_chunks, [&](int64_t chunk, int) {
    body(chunk * rows_per_chunk, std::min(num_rows, (chunk + 1) * rows_per_chunk));
  });
}

}  // namespace quire

#endif  // QUIRE_KERNELS_COMMON_PARALLEL_ROWS_H_
