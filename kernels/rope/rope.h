// Rotary position embedding in the half-split ("neox") form, in place, with the optional per-head
// RMSNorm of Qwen3 in front of it:
//
//   x = qk_norm ? rms_norm(x, norm_weight) : x
//   y[i]       = x[i] * cos - x[i + D/2] * sin       for i < D/2, angle = position * inv_freq[i]
//   y[i + D/2] = x[i + D/2] * cos + x[i] * sin
//
// cos and sin come from a table made once in double precision (RopeTable in worker/model), already
// multiplied by the attention factor of YaRN where there is one.
// Source: Su et al. 2021, section 3.4.2.
#ifndef QUIRE_KERNELS_ROPE_ROPE_H_
#define QUIRE_KERNELS_ROPE_ROPE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/common/impl.h"

namespace quire {

struct RopeArgs {
  float* x = nullptr;            // [num_tokens, num_heads, head_size] in place, rows x_stride apart
  int64_t x_stride = 0;          // elements
  int64_t num_tokens = 0;        // >= 0
  int32_t num_heads = 0;         // > 0
  int32_t head_size = 0;         // even
  const int32_t* positions = nullptr;  // [num_tokens]
  const float* cos = nullptr;    // [max_position, head_size / 2]
  const float* sin = nullptr;    // [max_position, head_size / 2]
  int64_t max_position = 0;      // rows of the tables
  const float* norm_weight = nullptr;  // [head_size] QK-norm, or null for none
  float norm_eps = 0;
};

absl::Status ValidateRope(const RopeArgs& args);
std::span<const Impl<RopeArgs>> RopeImpls();

}  // namespace quire

#endif  // QUIRE_KERNELS_ROPE_ROPE_H_
