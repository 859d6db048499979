// Vector work over one row of logits, used by the sampler (worker/sampling).
//
// All pick the lower index among equal values, so results do not depend on the vector width; sums
// have one order (64 chains in a block of kLogitsBlock, blocks in double) and exp is that of
// kernels/common/exp.h. So every function gives the same bits on every instruction set.
#ifndef QUIRE_KERNELS_SAMPLE_LOGITS_H_
#define QUIRE_KERNELS_SAMPLE_LOGITS_H_

#include <cstdint>
#include <span>

#include "kernels/common/isa.h"

namespace quire {

inline constexpr int64_t kLogitsBlock = 1024;  // values that one entry of exp_weights' sums covers

struct LogitsKernels {
  Isa isa;
  // Index of the largest value. NaN is never chosen; all NaN gives -1. Requires n > 0.
  int64_t (*argmax)(const float* logits, int64_t n);
  // The same in the same single pass, but -1 if any value is not finite.
  int64_t (*argmax_finite)(const float* logits, int64_t n);
  // True if every value is finite.
  bool (*all_finite)(const float* logits, int64_t n);
  // m + log(sum_i exp(x[i] - m)), m the maximum. Not finite if a value is NaN or +infinity.
  double (*log_sum_exp)(const float* logits, int64_t n);
  // x[i] = exp((x[i] - max) * inverse_temperature) in place; block_sums[b] = the sum of block b,
  // of which there are ceil(n / kLogitsBlock). Requires no NaN in x, max and inverse_temperature.
  void (*exp_weights)(float* x, int64_t n, float max, float inverse_temperature,
                      double* block_sums);
  // The k largest, descending; ties by lower index. Writes min(k, n) (less where values are NaN,
  // which are never chosen) and returns how many. `k` >= 0.
  // Meant for k << n (a threshold scan plus a small heap).
  int64_t (*top_k)(const float* logits, int64_t n, int64_t k, int32_t* indices, float* values);
};

// The kernels for `isa`, and the plain reference (sums in double, libm's exp).
const LogitsKernels& GetLogitsKernels(Isa isa);
const LogitsKernels& ReferenceLogitsKernels();

}  // namespace quire

#endif  // QUIRE_KERNELS_SAMPLE_LOGITS_H_
