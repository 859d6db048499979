// Between gemm.cc, which validates and takes scratch, and the kernels that are compiled once per
// instruction set. Those see plain structs only: an inline function of a library header compiled
// with AVX-512 must not be the copy that the linker keeps for everybody.
#ifndef QUIRE_KERNELS_GEMM_GEMM_SIMD_H_
#define QUIRE_KERNELS_GEMM_GEMM_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "kernels/common/thread_pool.h"
#include "kernels/gemm/gemm.h"

namespace quire {

// A validated call with its scratch, GemmScratchLayout bytes, 64-byte aligned.
struct GemmCall {
  const GemmArgs& args;
  ThreadPool& pool;
  std::byte* scratch;
};

constexpr int64_t kRowTile = 96;        // rows of x that share one pass over a panel slice
constexpr int64_t kMaxChunkPanels = 8;  // panels of one work item of the blocked loop
// A widened panel slice: 16 KiB (half of L1d) where it pays, at most this.
constexpr int64_t kSliceBytes = 32 << 10;

// Where a call's scratch lies: the prepared activations once, then slice and tile of each thread.
struct GemmScratchLayout {
  int64_t words_at = 0;   // activation words, at most k * 4 bytes a row
  int64_t scales_at = 0;  // F32, one a row or one a row and group
  int64_t sums_at = 0;    // the same number of 4-byte sums
  int64_t threads_at = 0;
  int64_t thread_bytes = 0;
  int64_t total_bytes = 0;
};

inline GemmScratchLayout MakeGemmScratchLayout(WeightForm form, int64_t panel_rows, int64_t m,
                                               int64_t k, int num_threads) {
  const bool is_float =
      form == WeightForm::kF32 || form == WeightForm::kBf16 || form == WeightForm::kFp8Block128;
  const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t scale_bytes = is_float                           ? 0
                              : form == WeightForm::kInt8Channel ? m * 4
                                                                 : m * (k / 32) * 4;
  const int64_t tile_rows = m < kRowTile ? m : kRowTile;
  GemmScratchLayout s;
  s.scales_at = aligned(m * k * (is_float ? 4 : 2));
  s.sums_at = s.scales_at + aligned(scale_bytes);
  s.threads_at = s.sums_at + aligned(scale_bytes);
  s.thread_bytes = kSliceBytes + kMaxChunkPanels * tile_rows * panel_rows * 4;
  s.total_bytes = s.threads_at + s.thread_bytes * num_threads;
  return s;
}

void GemmReference(const GemmArgs& args);

// The entry points of each instruction set: the forms of the name's kind.
#define QUIRE_DECLARE_GEMM(isa)         \
  namespace isa {                       \
  void GemmFloat(const GemmCall& call); \
  void GemmInt8(const GemmCall& call);  \
  void GemmInt4(const GemmCall& call);  \
  }
QUIRE_DECLARE_GEMM(portable)
QUIRE_DECLARE_GEMM(avx2)
QUIRE_DECLARE_GEMM(avx512)
QUIRE_DECLARE_GEMM(avx512sim)
#undef QUIRE_DECLARE_GEMM

// Validates and runs a call with the given entry points.
struct GemmFamily {
  const char* name;
  bool wide;  // reads AVX-512 panels
  void (*run_float)(const GemmCall&);
  void (*run_int8)(const GemmCall&);
  void (*run_int4)(const GemmCall&);
};
absl::Status RunGemmFamily(const GemmFamily& family, const GemmArgs& args, ExecContext& context);

}  // namespace quire

#endif  // QUIRE_KERNELS_GEMM_GEMM_SIMD_H_
