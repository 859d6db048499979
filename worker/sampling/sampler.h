// SamplerSlot: the sampling state of one running choice (sequence): counts for penalties and the
// random stream. Owned by the backend; the engine core names it by index in its plans.
//
// Order: raw logits; logprobs are taken here (before anything changes them); + logit_bias;
// repetition penalty; presence and frequency penalties; min_tokens bans end tokens; temperature 0
// (and one below 1e-6) takes the argmax, else softmax(x / T), then top_k, top_p of what top_k left,
// min_p, renormalised draw. Equal values: the lower token id stays and wins.
//
// Random numbers are counter-based: a function of (seed, choice index, output position) only, so a
// preempted or resumed sequence continues identically. Philox4x32-10, Salmon et al., SC 2011.
#ifndef QUIRE_WORKER_SAMPLING_SAMPLER_H_
#define QUIRE_WORKER_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/sample/logits.h"
#include "worker/sampling/sampling_params.h"

namespace quire {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token = -1;    // -1: the logits are not finite
  float logprob = 0;     // raw log-softmax of the token; only if asked for
  std::vector<TokenLogprob> top;  // descending; only if asked for
};

class SamplerSlot {
 public:
  // `params` is shared with the request and does not change. `stop_ids`: the end and stop tokens
  // that min_tokens bans. `prompt` feeds the repetition penalty.
  SamplerSlot(std::shared_ptr<const SamplingParams> params, int32_t choice_index,
              std::vector<int32_t> stop_ids, std::span<const int32_t> prompt, int32_t vocab);

  // Picks the token of output position `output_index` (0 for the first). `logits` [vocab] is
  // scratch afterwards. The token is not recorded: Record() does that, in order.
  SampledToken Sample(float* logits, int64_t vocab, int64_t output_index,
                      const LogitsKernels& kernels) const;

  void Record(int32_t token);  // an output token is now history

  bool wants_logprobs() const { return params_->num_logprobs >= 0; }

 private:
  // Bias, penalties and bans, in place. Leaves finite values, but for banned tokens' -infinity.
  void Adjust(float* logits, int64_t vocab, int64_t output_index) const;

  std::shared_ptr<const SamplingParams> params_;
  int32_t choice_index_;
  std::vector<int32_t> stop_ids_;
  bool penalised_;
  std::vector<uint32_t> seen_;  // prompt and output, a bit a token; only for repetition_penalty
  std::vector<std::pair<int32_t, int32_t>> output_counts_;  // (token, times), sorted by token
};

// Raw log-softmax of `token` and the `num_top` largest, for prompt logprobs.
SampledToken ScoreToken(const float* logits, int64_t vocab, int32_t token, int32_t num_top,
                        const LogitsKernels& kernels);

// Uniform in [0, 1) with 53 bits, a function of its arguments only.
double CounterUniform(uint64_t seed, uint32_t stream, uint64_t counter);

}  // namespace quire

#endif  // QUIRE_WORKER_SAMPLING_SAMPLER_H_
