// Matrix products with packed weights:  y[m, n] = x[m, k] * W[n, k]^T (+ bias[n]) (+ y[m, n])
//
// Weights are packed once at load into panels that one kernel family reads linearly; one packed
// form serves M = 1 and M = 512. Activations come and go as F32; a kernel rounds or quantises them
// itself (BF16 for the BF16 dot products of AVX-512; INT8 with one scale a row, or one a row and
// group of 32, for W8A8 and W4A8).
//
// Numbers: each output is one F32 accumulator, k ascending, by the same operations at every M; a
// row of y depends on its own row of x only. Integer parts are exact. So M = 1 and M = 512 agree
// bit by bit, with any number of threads. Families differ from each other in rounding.
#ifndef QUIRE_KERNELS_GEMM_GEMM_H_
#define QUIRE_KERNELS_GEMM_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/impl.h"

namespace quire {

// How a weight matrix is held in memory. In brackets: bytes a weight.
enum class WeightForm : uint8_t {
  kF32,             // [4]
  kBf16,            // [2]
  kInt8Channel,     // [1] s8, one F32 scale an output row; activations s8, one scale a row
  kInt8Group32,     // [1 + 1/16] s8, one F16 scale per 32 of k (GGUF Q8_0 and what maps to it)
  kInt4Group32,     // [1/2 + 1/16] u4 - 8, one F16 scale per 32 of k (Q4_0)
  kInt4Group32Min,  // [1/2 + 1/8] u4 * scale + min, F16 scale and F16 min per 32 of k (Q4_1, Q4_K)
  kFp8Block128,     // [1] e4m3, one F32 scale per 128 x 128 block (Qwen3 FP8 checkpoints)
};

const char* WeightFormName(WeightForm form);  // "f32", "bf16", "int8", "int8_g32", "int4_g32", ...

// Rows in the canonical, unpacked form of `form`: what loaders produce and PackRows takes.
//   kF32 / kBf16:   values float / uint16_t [n][k]
//   kInt8Channel:   values int8_t [n][k] in [-127, 127]; scales float [n]
//   kInt8Group32:   values int8_t [n][k]; scales F16 uint16_t [n][k / 32]
//   kInt4Group32*:  values uint8_t [n][k / 2], element 2i in the low nibble of byte i, 2i+1 in the
//                   high; scales F16 [n][k / 32]; mins F16 [n][k / 32] (Min only)
//   kFp8Block128:   values uint8_t [n][k] e4m3; scales float [k / 128 rounded up] for the rows'
//                   own 128-row block: all rows of one call lie in one block of 128 rows
struct WeightRows {
  WeightForm form = WeightForm::kF32;
  int64_t num_rows = 0;
  int64_t k = 0;
  const void* values = nullptr;
  const void* scales = nullptr;
  const void* mins = nullptr;
};

// A packed matrix in borrowed memory. The pack family is that of `isa` (portable and AVX2 share one
// panel order, AVX-512 has its own).
struct PackedMatrix {
  WeightForm form = WeightForm::kF32;
  Isa isa = Isa::kPortable;
  int64_t n = 0;
  int64_t k = 0;
  std::byte* data = nullptr;  // PackedBytes() bytes, 64-byte aligned, zeroed before packing
};

// Errors: UNIMPLEMENTED if k does not fit the form (a multiple of 32 for groups, of 16 else).
absl::Status ValidatePackedShape(WeightForm form, int64_t n, int64_t k);

int64_t PackedBytes(WeightForm form, Isa isa, int64_t n, int64_t k);

// Packs rows [row_begin, row_begin + rows.num_rows) of the matrix. Calls for disjoint ranges may
// run at the same time only if the ranges do not share a panel of PanelRows(isa) rows.
absl::Status PackRows(const PackedMatrix& matrix, int64_t row_begin, const WeightRows& rows);
int64_t PanelRows(Isa isa);  // output rows of one panel: 16 or 32

// The dequantised row `row`: the embedding look-up of a tied table. `out` [k].
void DequantizeRow(const PackedMatrix& matrix, int64_t row, float* out);

struct GemmArgs {
  const float* x = nullptr;  // [m, k], rows x_stride apart
  int64_t x_stride = 0;
  const PackedMatrix* w = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n], rows y_stride apart; must not overlap x
  int64_t y_stride = 0;
  int64_t m = 0;            // >= 0; 0 does nothing
  bool accumulate = false;  // add the product (and bias) to what y holds: the residual
};

absl::Status ValidateGemm(const GemmArgs& args);

// Scratch for a call with at most max_m rows.
int64_t GemmScratchBytes(WeightForm form, Isa isa, int64_t max_m, int64_t n, int64_t k,
                         int num_threads);

// The implementations that can read `isa`-packed weights. "reference" (first) reads any packing.
std::span<const Impl<GemmArgs>> GemmImpls();

// Quantisation of F32 rows, the definition used when a checkpoint is loaded into a narrower form
// than it has. Output in the canonical form above, into memory that the caller sized.
//   int8 channel: scale = amax / 127; codes round-to-nearest-even; an all-zero row has scale 0
//   int8 g32:     scale = F16(amax / 127) of each group
//   int4 g32:     u4 with 8 as zero: scale = F16(signed value of largest magnitude / -8), as Q4_0
//   int4 g32 min: scale = F16((max - min) / 15), min = F16(min)
void QuantizeRowsInt8Channel(const float* x, int64_t num_rows, int64_t k, int8_t* values,
                             float* scales);
void QuantizeRowsInt8Group32(const float* x, int64_t num_rows, int64_t k, int8_t* values,
                             uint16_t* scales);
void QuantizeRowsInt4Group32(const float* x, int64_t num_rows, int64_t k, uint8_t* values,
                             uint16_t* scales);
void QuantizeRowsInt4Group32Min(const float* x, int64_t num_rows, int64_t k, uint8_t* values,
                                uint16_t* scales, uint16_t* mins);

}  // namespace quire

#endif  // QUIRE_KERNELS_GEMM_GEMM_H_
