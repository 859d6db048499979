// SamplingParams: how one request wants its tokens picked, after defaults were filled in and values
// were checked (worker/sampling/sampling_params.cc).
#ifndef QUIRE_WORKER_SAMPLING_SAMPLING_PARAMS_H_
#define QUIRE_WORKER_SAMPLING_SAMPLING_PARAMS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace quire {

struct SamplingParams {
  int32_t max_tokens = -1;  // -1: up to the model's length
  float temperature = 1;    // 0 = greedy
  float top_p = 1;          // [0, 1]; at least one token always stays
  int64_t top_k = 0;        // 0 = off
  float min_p = 0;          // [0, 1]
  float repetition_penalty = 1;  // > 0; prompt and output tokens
  float presence_penalty = 0;    // output tokens only
  float frequency_penalty = 0;   // output tokens only
  std::vector<std::pair<int32_t, float>> logit_bias;  // ascending ids; added to the raw logits
  uint64_t seed = 0;  // filled in by the service when the request has none
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // the model's end tokens are added unless ignore_eos
  bool ignore_eos = false;
  int32_t min_tokens = 0;  // before these, end and stop tokens are not sampled
  int32_t num_logprobs = -1;         // -1 = none; 0 = the chosen token's only; <= 20
  int32_t num_prompt_logprobs = -1;  // likewise, for the prompt
  int32_t n = 1;
};

// Limits of contract: what a request may ask for.
inline constexpr int32_t kMaxLogprobs = 20;
inline constexpr int32_t kMaxChoices = 64;
inline constexpr int32_t kMaxStops = 64;
inline constexpr int32_t kMaxStopBytes = 1024;

// Errors: INVALID_ARGUMENT naming the field, its value and the range.
absl::Status ValidateSamplingParams(const SamplingParams& params, int32_t vocab);

}  // namespace quire

#endif  // QUIRE_WORKER_SAMPLING_SAMPLING_PARAMS_H_
