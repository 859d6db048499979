#include "worker/sampling/sampling_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace quire {
namespace {

template <class T>
absl::Status Refuse(const char* field, const T& value, const std::string& range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", must be ", range));
}

absl::Status CheckFinite(const char* field, float value) {
  return std::isfinite(value) ? absl::OkStatus() : Refuse(field, value, "a finite number");
}

absl::Status CheckInt(const char* field, int64_t value, int64_t low, int64_t high) {
  return low <= value && value <= high
             ? absl::OkStatus()
             : Refuse(field, value, absl::StrCat("in [", low, ", ", high, "]"));
}

absl::Status CheckUnit(const char* field, float value) {  // NaN fails both comparisons
  return value >= 0 && value <= 1 ? absl::OkStatus() : Refuse(field, value, "in [0, 1]");
}

absl::Status CheckTokenId(const std::string& field, int64_t id, int32_t vocab) {
  return id >= 0 && id < vocab
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   field, " names token ", id, ", must be in [0, ", vocab, "): the vocabulary"));
}

absl::Status ValidateStops(const SamplingParams& params, int32_t vocab) {
  if (params.stop.size() > kMaxStops) {
    return Refuse("stop", absl::StrCat(params.stop.size(), " strings"),
                  absl::StrCat("at most ", kMaxStops));
  }
  for (size_t i = 0; i < params.stop.size(); ++i) {
    const size_t bytes = params.stop[i].size();
    if (bytes == 0 || bytes > kMaxStopBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop[", i, "] has ", bytes, " bytes, must have 1 to ", kMaxStopBytes));
    }
  }
  if (params.stop_token_ids.size() > kMaxStops) {
    return Refuse("stop_token_ids", absl::StrCat(params.stop_token_ids.size(), " ids"),
                  absl::StrCat("at most ", kMaxStops));
  }
  for (size_t i = 0; i < params.stop_token_ids.size(); ++i) {
    RETURN_IF_ERROR(
        CheckTokenId(absl::StrCat("stop_token_ids[", i, "]"), params.stop_token_ids[i], vocab));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params, int32_t vocab) {
  if (params.max_tokens < -1) {
    return Refuse("max_tokens", params.max_tokens, ">= 0 (or -1 for the model's length)");
  }
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return Refuse("temperature", params.temperature, "finite and >= 0 (0 is greedy)");
  }
  RETURN_IF_ERROR(CheckUnit("top_p", params.top_p));
  if (params.top_k < 0) return Refuse("top_k", params.top_k, ">= 0 (0 is off)");
  RETURN_IF_ERROR(CheckUnit("min_p", params.min_p));
  if (!(params.repetition_penalty > 0) || !std::isfinite(params.repetition_penalty)) {
    return Refuse("repetition_penalty", params.repetition_penalty, "finite and > 0 (1 is off)");
  }
  RETURN_IF_ERROR(CheckFinite("presence_penalty", params.presence_penalty));
  RETURN_IF_ERROR(CheckFinite("frequency_penalty", params.frequency_penalty));
  for (size_t i = 0; i < params.logit_bias.size(); ++i) {
    const auto& [token, bias] = params.logit_bias[i];
    RETURN_IF_ERROR(CheckTokenId("logit_bias", token, vocab));
    RETURN_IF_ERROR(CheckFinite(absl::StrCat("logit_bias of token ", token).c_str(), bias));
    if (i > 0 && token <= params.logit_bias[i - 1].first) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias has token ", token, " after token ",
                       params.logit_bias[i - 1].first, ", must be ascending and each id once"));
    }
  }
  RETURN_IF_ERROR(ValidateStops(params, vocab));
  if (params.min_tokens < 0) return Refuse("min_tokens", params.min_tokens, ">= 0");
  if (params.max_tokens >= 0 && params.min_tokens > params.max_tokens) {
    return Refuse("min_tokens", params.min_tokens,
                  absl::StrCat("at most max_tokens = ", params.max_tokens));
  }
  // -1, the value for "not asked", is no number of a request's: the range named is the user's.
  if (params.num_logprobs != -1) {
    RETURN_IF_ERROR(CheckInt("logprobs", params.num_logprobs, 0, kMaxLogprobs));
  }
  if (params.num_prompt_logprobs != -1) {
    RETURN_IF_ERROR(CheckInt("prompt_logprobs", params.num_prompt_logprobs, 0, kMaxLogprobs));
  }
  return CheckInt("n", params.n, 1, kMaxChoices);
}

}  // namespace quire
