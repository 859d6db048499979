#include "worker/sampling/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace quire {
namespace {

constexpr int32_t kVocab = 320;
constexpr float kInf = std::numeric_limits<float>::infinity();

using Change = std::function<void(SamplingParams&)>;

SamplingParams With(const Change& change) {
  SamplingParams params;
  change(params);
  return params;
}

TEST(SamplingParams, RefusesByFieldValueAndRange) {
  const struct {
    Change change;
    const char* message;
  } bad[] = {
      {[](auto& p) { p.max_tokens = -2; }, "max_tokens is -2, must be >= 0"},
      {[](auto& p) { p.temperature = -0.5f; }, "temperature is -0.5, must be finite and >= 0"},
      {[](auto& p) { p.temperature = NAN; }, "temperature is nan"},
      {[](auto& p) { p.temperature = kInf; }, "temperature is inf"},
      {[](auto& p) { p.top_p = -0.1f; }, "top_p is -0.1, must be in [0, 1]"},
      {[](auto& p) { p.top_p = 1.5f; }, "top_p is 1.5, must be in [0, 1]"},
      {[](auto& p) { p.top_p = NAN; }, "top_p is nan"},
      {[](auto& p) { p.top_k = -1; }, "top_k is -1, must be >= 0"},
      {[](auto& p) { p.min_p = -1; }, "min_p is -1, must be in [0, 1]"},
      {[](auto& p) { p.min_p = 1.25f; }, "min_p is 1.25"},
      {[](auto& p) { p.min_p = NAN; }, "min_p is nan"},
      {[](auto& p) { p.repetition_penalty = 0; },
       "repetition_penalty is 0, must be finite and > 0"},
      {[](auto& p) { p.repetition_penalty = -1; }, "repetition_penalty is -1"},
      {[](auto& p) { p.repetition_penalty = NAN; }, "repetition_penalty is nan"},
      {[](auto& p) { p.repetition_penalty = kInf; }, "repetition_penalty is inf"},
      {[](auto& p) { p.presence_penalty = NAN; }, "presence_penalty is nan, must be a finite"},
      {[](auto& p) { p.presence_penalty = -kInf; }, "presence_penalty is -inf"},
      {[](auto& p) { p.frequency_penalty = NAN; }, "frequency_penalty is nan"},
      {[](auto& p) {
         p.logit_bias = {{320, 1}};
       },
       "logit_bias names token 320, must be in [0, 320)"},
      {[](auto& p) {
         p.logit_bias = {{-1, 1}};
       },
       "logit_bias names token -1"},
      {[](auto& p) {
         p.logit_bias = {{97, NAN}};
       },
       "logit_bias of token 97 is nan"},
      {[](auto& p) {
         p.logit_bias = {{97, kInf}};
       },
       "logit_bias of token 97 is inf"},
      {[](auto& p) {
         p.logit_bias = {{5, 1}, {5, 2}};
       },
       "logit_bias has token 5 after token 5"},
      {[](auto& p) {
         p.stop = {"a", ""};
       },
       "stop[1] has 0 bytes, must have 1 to 1024"},
      {[](auto& p) { p.stop = {std::string(1025, 'x')}; }, "stop[0] has 1025 bytes"},
      {[](auto& p) { p.stop.assign(65, "x"); }, "stop is 65 strings, must be at most 64"},
      {[](auto& p) {
         p.stop_token_ids = {3, 320};
       },
       "stop_token_ids[1] names token 320"},
      {[](auto& p) { p.stop_token_ids.assign(65, 1); }, "stop_token_ids is 65 ids"},
      {[](auto& p) { p.min_tokens = -1; }, "min_tokens is -1, must be >= 0"},
      {[](auto& p) { p.min_tokens = 9, p.max_tokens = 8; },
       "min_tokens is 9, must be at most max_tokens = 8"},
      {[](auto& p) { p.num_logprobs = 21; }, "logprobs is 21, must be in [0, 20]"},
      {[](auto& p) { p.num_logprobs = -2; }, "logprobs is -2, must be in [0, 20]"},
      {[](auto& p) { p.num_prompt_logprobs = 21; }, "prompt_logprobs is 21, must be in [0, 20]"},
      {[](auto& p) { p.n = 0; }, "n is 0, must be in [1, 64]"},
      {[](auto& p) { p.n = 65; }, "n is 65, must be in [1, 64]"},
  };
  for (const auto& b : bad) {
    const absl::Status status = ValidateSamplingParams(With(b.change), kVocab);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << b.message;
    EXPECT_NE(std::string(status.message()).find(b.message), std::string::npos)
        << "got: " << status.message() << "\nwant: " << b.message;
  }
}

TEST(SamplingParams, AcceptsTheEdges) {
  const Change good[] = {
      [](auto&) {},
      [](auto& p) { p.max_tokens = 0; },  // pub-e-max_tokens_zero: warms the cache
      [](auto& p) { p.temperature = 0; },
      [](auto& p) { p.temperature = 1e-45f; },
      [](auto& p) { p.temperature = 1e30f; },
      [](auto& p) { p.top_p = 0; },
      [](auto& p) { p.top_k = 2147483647; },
      [](auto& p) { p.top_k = std::numeric_limits<int64_t>::max(); },
      [](auto& p) { p.min_p = 1; },
      [](auto& p) { p.repetition_penalty = 1e-38f; },
      [](auto& p) { p.presence_penalty = -2.5f, p.frequency_penalty = -3; },
      [](auto& p) {
        p.logit_bias = {{0, -100}, {319, 100}};
      },
      [](auto& p) { p.stop.assign(64, std::string(1024, 'x')); },
      [](auto& p) {
        p.stop_token_ids = {0, 319};
      },
      [](auto& p) { p.min_tokens = 8, p.max_tokens = 8; },
      [](auto& p) { p.min_tokens = 8; },
      [](auto& p) { p.num_logprobs = 0, p.num_prompt_logprobs = 20; },
      [](auto& p) { p.n = 64; },
  };
  for (size_t i = 0; i < std::size(good); ++i) {
    EXPECT_TRUE(ValidateSamplingParams(With(good[i]), kVocab).ok()) << i;
  }
}

}  // namespace
}  // namespace quire
