// Vector work over one row of logits, used by the sampler (worker/sampling).
//
// All pick the lower index among equal values, so results do not depend on the vector width.
#ifndef QUIRE_KERNELS_SAMPLE_LOGITS_H_
#define QUIRE_KERNELS_SAMPLE_LOGITS_H_

#include <cstdint>
#include <span>

#include "kernels/common/isa.h"

namespace quire {

struct LogitsKernels {
  Isa isa;
  // Index of the largest value. NaN is never chosen; all NaN gives -1. Requires n > 0.
  int64_t (*argmax)(const float* logits, int64_t n);
  // True if every value is finite.
  bool (*all_finite)(const float* logits, int64_t n);
  // m + log(sum_i exp(x[i] - m)), m the maximum, accumulated in a fixed order.
  double (*log_sum_exp)(const float* logits, int64_t n);
  // The k largest, descending; ties by lower index. Writes min(k, n) and returns that. `k` >= 0.
  // Meant for k << n (a threshold scan plus a small heap).
  int64_t (*top_k)(const float* logits, int64_t n, int64_t k, int32_t* indices, float* values);
};

// The kernels for `isa`, and the plain reference.
const LogitsKernels& GetLogitsKernels(Isa isa);
const LogitsKernels& ReferenceLogitsKernels();

}  // namespace quire

#endif  // QUIRE_KERNELS_SAMPLE_LOGITS_H_
