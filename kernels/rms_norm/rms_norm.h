// RMSNorm over the last dimension:  y[t,i] = x[t,i] * weight[i] / sqrt(mean_i(x[t,i]^2) + eps)
// Source: Zhang and Sennrich, NeurIPS 2019, eq. 4. Also serves the per-head QK-norm of Qwen3: there
// a "token" is one head of one token.
#ifndef QUIRE_KERNELS_RMS_NORM_RMS_NORM_H_
#define QUIRE_KERNELS_RMS_NORM_RMS_NORM_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/common/impl.h"

namespace quire {

struct RmsNormArgs {              // Strides count elements.
  const float* x = nullptr;       // [num_tokens, hidden], rows x_stride apart
  int64_t x_stride = 0;           // >= hidden
  const float* weight = nullptr;  // [hidden]
  float* y = nullptr;             // [num_tokens, hidden], rows y_stride apart; may be x itself
  int64_t y_stride = 0;           // >= hidden
  int64_t num_tokens = 0;         // >= 0; 0 does nothing
  int64_t hidden = 0;             // > 0
  float eps = 0;                  // > 0
};

absl::Status ValidateRmsNorm(const RmsNormArgs& args);
std::span<const Impl<RmsNormArgs>> RmsNormImpls();

}  // namespace quire

#endif  // QUIRE_KERNELS_RMS_NORM_RMS_NORM_H_
