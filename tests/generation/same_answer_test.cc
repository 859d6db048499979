// Same answer every way: what a request gets depends on its own tokens alone, bit for bit, logprobs
// included; not on what runs beside it, how its prefill is cut, what the prefix cache held, whether
// it was preempted, how its blocks lie, how many threads computed, or how far plans run ahead.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/engine_harness.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/test_files.h"

namespace quire::test {
namespace {

std::vector<int32_t> Prompt(int32_t start, int32_t length) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t i = 0; i < length; ++i) ids[static_cast<size_t>(i)] = (start + 31 * i) % 256;
  return ids;
}

// 32 requests: lengths around blocks of 16 and attention chunks of 256, shared prefixes, and every
// kind of sampling.
// `stride`: only every so many of them.
std::vector<HarnessRequest> Workload(int stride) {
  std::vector<HarnessRequest> requests;
  const int32_t lengths[] = {1,  2,  15, 16,  17,  31,  32,  33,  40,  48,  63,
                             64, 65, 80, 100, 127, 129, 200, 255, 256, 257, 300};
  int32_t number = 0;
  auto add = [&](std::vector<int32_t> prompt) {
    HarnessRequest r{.prompt = std::move(prompt), .sampling = Greedy(10, /*num_logprobs=*/3)};
    SamplingParams& s = r.sampling;
    s.seed = 100 + static_cast<uint64_t>(number);
    switch (number % 5) {
      case 0:
        break;  // greedy
      case 1:
        s.temperature = 0.8f;
        break;
      case 2:
        s.temperature = 1.2f;
        s.top_k = 40;
        s.top_p = 0.9f;
        s.min_p = 0.01f;
        break;
      case 3:
        s.repetition_penalty = 1.3f;
        s.presence_penalty = 0.4f;
        s.frequency_penalty = 0.2f;
        s.logit_bias = {{5, 1.5f}, {77, -2.0f}};
        break;
      case 4:
        s.temperature = 1;
        s.n = 3;
        break;
    }
    if (number % 7 == 3) s.num_prompt_logprobs = 2;
    if (number % 6 == 1) s.max_tokens = 40;
    if (number++ % stride == 0) requests.push_back(std::move(r));
  };
  for (int32_t length : lengths) add(Prompt(length, length));
  for (int32_t i = 0; i < 6; ++i) {  // one document, several questions
    std::vector<int32_t> p = Prompt(3, 150);
    const std::vector<int32_t> question = Prompt(200 + i, 5 + 7 * i);
    p.insert(p.end(), question.begin(), question.end());
    add(std::move(p));
  }
  for (int32_t i = 0; i < 4; ++i) add(Prompt(9, 70));  // the same prompt four times
  return requests;
}

std::vector<std::string> Fingerprints(const std::vector<HarnessResult>& results) {
  std::vector<std::string> out;
  for (const HarnessResult& r : results) out.push_back(Fingerprint(r));
  return out;
}

// Each request alone in an engine that has seen nothing.
std::vector<std::string> Alone(const std::shared_ptr<const Model>& model,
                               const std::vector<HarnessRequest>& requests, KvDtype kv) {
  std::vector<std::string> out;
  for (const HarnessRequest& r : requests) {
    EngineHarness engine(model, {.kv_dtype = kv, .num_blocks = 128, .max_num_seqs = 8});
    const HarnessResult result = engine.RunOne(r);
    EXPECT_TRUE(result.status.ok()) << result.status;
    out.push_back(Fingerprint(result));
  }
  return out;
}

void ExpectSame(const std::vector<std::string>& got, const std::vector<std::string>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], want[i]) << "request " << i;
}

struct ModelCase {
  const char* name;
  const char* model_type;
  const char* weights;
  KvDtype kv;
  int hidden, inner, heads, kv_heads, head_size;
  int stride = 1;  // of the workload: large models take fewer requests
};
std::ostream& operator<<(std::ostream& out, const ModelCase& c) { return out << c.name; }

class SameAnswer : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    const ModelCase& c = GetParam();
    RandomCheckpoint checkpoint;
    checkpoint.config_json = TinyConfigJson(c.model_type, c.head_size, c.heads, c.kv_heads,
                                            /*num_layers=*/2, c.hidden, c.inner);
    checkpoint.seed = 42;
    ASSERT_TRUE(WriteRandomCheckpoint(dir_.path(), checkpoint).ok());
    auto model = TryLoadTestModel(dir_.path(), c.weights);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    requests_ = Workload(kSanitized ? 3 * c.stride : c.stride);
    // The same for every test of a model: computed once.
    static std::map<std::string, std::vector<std::string>> known;
    std::vector<std::string>& alone = known[c.name];
    if (alone.empty()) alone = Alone(model_, requests_, c.kv);
    alone_ = alone;
  }
  HarnessOptions Options() const {
    return {.kv_dtype = GetParam().kv, .num_blocks = 1024, .max_num_seqs = 64};
  }
  // Runs the whole workload at once in a new engine.
  void ExpectSameTogether(const HarnessOptions& options) {
    EngineHarness engine(model_, options);
    ExpectSame(Fingerprints(engine.Run(requests_)), alone_);
  }

  TempDir dir_;
  std::shared_ptr<const Model> model_;
  std::vector<HarnessRequest> requests_;
  std::vector<std::string> alone_;
};

TEST_P(SameAnswer, AllAtOnceAndInAnotherOrder) {
  ExpectSameTogether(Options());
  std::vector<HarnessRequest> reversed(requests_.rbegin(), requests_.rend());
  std::vector<std::string> want(alone_.rbegin(), alone_.rend());
  EngineHarness engine(model_, Options());
  ExpectSame(Fingerprints(engine.Run(reversed)), want);
}

TEST_P(SameAnswer, AnyChunkingOfPrefill) {
  for (int32_t rows : {7, 16, 33, 512}) {
    SCOPED_TRACE(rows);
    HarnessOptions options = Options();
    options.max_num_batched_tokens = rows;
    ExpectSameTogether(options);
  }
  HarnessOptions options = Options();
  options.max_num_batched_tokens = 1;  // every row is a step: the short ones only
  EngineHarness engine(model_, options);
  const auto count = static_cast<int64_t>(alone_.size() / 4);
  const std::vector<std::string> want(alone_.begin(), alone_.begin() + count);
  ExpectSame(Fingerprints(engine.Run({requests_.begin(), requests_.begin() + count})), want);
}

TEST_P(SameAnswer, PrefixHitOrMiss) {
  EngineHarness engine(model_, Options());
  ExpectSame(Fingerprints(engine.Run(requests_)), alone_);
  const std::vector<HarnessResult> again = engine.Run(requests_);
  ExpectSame(Fingerprints(again), alone_);
  int32_t cached = 0;
  for (const HarnessResult& r : again) cached += r.cached_tokens;
  EXPECT_GT(cached, 300);  // it was a hit
  HarnessOptions off = Options();
  off.enable_prefix_caching = false;
  ExpectSameTogether(off);
}

TEST_P(SameAnswer, Preempted) {
  HarnessOptions options = Options();
  // The longest request fits, with few blocks to spare for the others.
  options.num_blocks = 22;
  options.max_model_len = 352;
  EngineHarness engine(model_, options);
  ExpectSame(Fingerprints(engine.Run(requests_)), alone_);
  EXPECT_GT(engine.stats().preemptions, 0);
}

TEST_P(SameAnswer, Contiguous) {
  HarnessOptions options = Options();
  options.paged = false;
  options.max_model_len = 512;
  options.num_blocks = 32 * 12;
  ExpectSameTogether(options);
}

TEST_P(SameAnswer, AnyNumberOfThreads) {
  for (int threads : {2, 3, 5}) {
    SCOPED_TRACE(threads);
    HarnessOptions options = Options();
    options.num_threads = threads;
    ExpectSameTogether(options);
  }
}

TEST_P(SameAnswer, PlansOneStepAhead) {
  HarnessOptions options = Options();
  options.max_steps_in_flight = 2;
  ExpectSameTogether(options);
  options.num_blocks = 28;  // and preempted
  options.max_model_len = 400;
  options.max_num_batched_tokens = 40;
  ExpectSameTogether(options);
}

TEST_P(SameAnswer, BlocksOf32) {
  HarnessOptions options = Options();
  options.block_size = 32;
  ExpectSameTogether(options);
}

TEST_P(SameAnswer, ResumedOnAnotherWorker) {
  EngineHarness first(model_, Options());
  const std::vector<HarnessResult> whole = first.Run(requests_);
  HarnessOptions options = Options();
  options.max_num_batched_tokens = 50;
  EngineHarness second(model_, options);
  for (size_t i = 0; i < requests_.size(); ++i) {
    HarnessRequest r = requests_[i];
    if (r.sampling.n > 1 || r.sampling.num_prompt_logprobs >= 0) continue;
    const std::vector<int32_t>& tokens = whole[i].choices[0].tokens;
    const size_t sent = 1 + i % (tokens.size() - 1);
    r.resume.assign(tokens.begin(), tokens.begin() + static_cast<int64_t>(sent));
    const HarnessResult rest = second.RunOne(r);
    ASSERT_TRUE(rest.status.ok()) << rest.status;
    EXPECT_EQ(rest.choices[0].tokens,
              std::vector<int32_t>(tokens.begin() + static_cast<int64_t>(sent), tokens.end()))
        << "request " << i << " after " << sent << " tokens";
  }
}

constexpr ModelCase kCases[] = {
    {"qwen3_bf16_bf16", "qwen3", "bf16", KvDtype::kBf16, 64, 96, 4, 2, 64},
    {"qwen3_f32_f32", "qwen3", "f32", KvDtype::kF32, 64, 96, 4, 2, 80},
    {"qwen2_int8_fp8", "qwen2", "int8", KvDtype::kFp8E4m3, 64, 96, 6, 2, 64},
    {"llama_int4_e5m2", "llama", "int4", KvDtype::kFp8E5m2, 64, 96, 4, 1, 96},
    // The widths of SmolLM2: panels and loops at their real size.
    {"llama_bf16_fp8_wide", "llama", "bf16", KvDtype::kFp8E4m3, 576, 1536, 9, 3, 64, 3},
};
INSTANTIATE_TEST_SUITE_P(Models, SameAnswer, ::testing::ValuesIn(kCases),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// The real model in the form its file has (4-bit), alone and beside others.
TEST(SmolLm2SameAnswer, AloneOrTogether) {
  SKIP_IF_SANITIZED();
  SKIP_WITHOUT_SMOLLM2(path);
  auto model = TryLoadTestModel(*path);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<HarnessRequest> requests;
  for (int32_t length : {3, 100, 270}) {
    requests.push_back({.prompt = Prompt(length, length), .sampling = Greedy(4, 2)});
  }
  const std::vector<std::string> alone = Alone(*model, requests, KvDtype::kBf16);
  EngineHarness engine(*model, {.num_blocks = 256, .num_threads = 2, .max_num_batched_tokens = 96});
  ExpectSame(Fingerprints(engine.Run(requests)), alone);
  ExpectSame(Fingerprints(engine.Run(requests)), alone);  // from the cache
}

}  // namespace
}  // namespace quire::test
