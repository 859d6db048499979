// RowConverter: rows of a checkpoint's tensor in the canonical form that PackRows takes.
//
// Quantised GGUF blocks go over without floats wherever the target form can hold them exactly:
//   Q8_0, Q5_0, Q4_0 -> int8_g32;  Q4_0 -> int4_g32;  Q4_0, Q4_1 -> int4_g32_min;
//   Q4_K -> int4_g32_min with scale * d and min * dmin rounded to F16.
// BF16 and F32 rows that lie aligned in the file and keep their form are not copied at all.
//
// Owner: one loading thread. It holds the staging memory, which grows to the largest call.
#ifndef QUIRE_WORKER_MODEL_ROW_CONVERTER_H_
#define QUIRE_WORKER_MODEL_ROW_CONVERTER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "worker/model/tensor_files.h"

namespace quire {

// A matrix of the checkpoint, or one part of a fused matrix.
struct RowSource {
  const TensorFiles* files = nullptr;
  const TensorInfo* tensor = nullptr;  // shape [rows, k]
  const TensorInfo* scale = nullptr;   // of kF8E4m3: [rows / 128 rounded up, k / 128 rounded up]
  // Above 0: the file holds the rows of each head with the two halves of RoPE interleaved (GGUF,
  // architecture "llama"): row h, 2i + j there is row h, j * interleaved_head_size / 2 + i here.
  int64_t interleaved_head_size = 0;

  int64_t rows() const { return tensor->shape[0]; }
  int64_t k() const { return tensor->shape[1]; }
};

class RowConverter {
 public:
  // Rows [row, row + count) of `source` in `form`. `out` points into the file or into this object,
  // until the next call. For kFp8Block128 the rows lie in one block of 128 of the source.
  // Requires a source whose shapes were checked and a form that suits it.
  // Errors: INVALID_ARGUMENT naming file, tensor and row if a value that is to be quantised is not
  // finite.
  absl::Status Convert(const RowSource& source, int64_t row, int64_t count, WeightForm form,
                       WeightRows* out);

  int64_t staging_bytes() const;

 private:
  // The rows' bytes in order, in the file or gathered.
  const std::byte* RawRows(const RowSource& source, int64_t row, int64_t count);
  const float* FloatRows(const RowSource& source, int64_t row, int64_t count, const std::byte* raw);
  void ConvertBlocks(const RowSource& source, int64_t count, const std::byte* raw, WeightForm form);

  std::vector<std::byte> raw_;
  std::vector<float> floats_;
  std::vector<std::byte> values_;
  std::vector<uint16_t> scales_, mins_;
  std::vector<float> float_scales_;
};

// True if the blocks of `type` become `form` without floats.
bool ConvertsDirectly(TensorType type, WeightForm form);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_ROW_CONVERTER_H_
