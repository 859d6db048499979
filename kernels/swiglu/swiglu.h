// SwiGLU:  y[t,i] = silu(x[t,i]) * x[t, inner + i],  silu(a) = a / (1 + exp(-a))
// x is the output of the fused gate/up product, gate first. Source: Shazeer 2020, eq. 6.
// exp is the project's own polynomial (kernels/common/exp.h), the same bits in every
// implementation.
#ifndef QUIRE_KERNELS_SWIGLU_SWIGLU_H_
#define QUIRE_KERNELS_SWIGLU_SWIGLU_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/common/impl.h"

namespace quire {

struct SwigluArgs {
  const float* x = nullptr;  // [num_tokens, 2 * inner], rows x_stride apart
  int64_t x_stride = 0;      // >= 2 * inner
  float* y = nullptr;        // [num_tokens, inner], rows y_stride apart; must not overlap x
  int64_t y_stride = 0;      // >= inner
  int64_t num_tokens = 0;    // >= 0
  int64_t inner = 0;         // > 0
};

absl::Status ValidateSwiglu(const SwigluArgs& args);
std::span<const Impl<SwigluArgs>> SwigluImpls();

}  // namespace quire

#endif  // QUIRE_KERNELS_SWIGLU_SWIGLU_H_
