// The public cases (tests/data/cases_public) that need a running engine: sampling (area e), model
// files that load and generate (area f), the KV cache (area g). The values are the cases' own;
// scenarios in words are written out here under the case's id.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/block_key.h"
#include "kernels/common/exec_context.h"
#include "kernels/kv_write/kv_write.h"
#include "tests/support/engine_harness.h"
#include "tests/support/test_archive.h"
#include "tests/support/test_files.h"
#include "worker/sampling/sampling_params.h"

namespace quire::test {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Json Case(const std::string& id) {
  std::istringstream lines(ReadSourceFile("tests/data/cases_public/cases.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    Json j = Json::parse(line);
    if (j["id"] == id) return j;
  }
  ADD_FAILURE() << "no case " << id;
  return {};
}

// The prompt rule of the cache scenarios.
Ids P(int32_t a, int32_t n) {
  Ids ids;
  for (int32_t i = 0; i < n; ++i) ids.push_back((a + 31 * i) % 256);
  return ids;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

float Number(const Json& j) { return j == "NaN" ? NAN : j.get<float>(); }

// A request's sampling as the service reads it.
SamplingParams Sampling(const Json& j) {
  SamplingParams p;
  p.max_tokens = j.value("max_tokens", p.max_tokens);
  p.temperature = j.value("temperature", p.temperature);
  p.top_p = j.value("top_p", p.top_p);
  p.top_k = j.value("top_k", p.top_k);
  p.min_p = j.value("min_p", p.min_p);
  p.repetition_penalty = j.value("repetition_penalty", p.repetition_penalty);
  p.presence_penalty = j.value("presence_penalty", p.presence_penalty);
  p.frequency_penalty = j.value("frequency_penalty", p.frequency_penalty);
  p.seed = j.value("seed", p.seed);
  p.ignore_eos = j.value("ignore_eos", p.ignore_eos);
  p.num_logprobs = j.value("logprobs", p.num_logprobs);
  p.num_prompt_logprobs = j.value("prompt_logprobs", p.num_prompt_logprobs);
  p.n = j.value("n", p.n);
  if (j.contains("logit_bias")) {
    std::map<int32_t, float> bias;
    for (const auto& [id, value] : j["logit_bias"].items()) bias[std::stoi(id)] = Number(value);
    p.logit_bias.assign(bias.begin(), bias.end());
  }
  return p;
}

std::shared_ptr<const Model> LoadCaseModel(const std::string& make, const TempDir& dir,
                                           const std::string& weights = "auto") {
  auto model = TryLoadTestModel(ExtractCaseModel(make, dir), weights);
  EXPECT_TRUE(model.ok()) << make << ": " << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// ---- e: sampling
// ---------------------------------------------------------------------------------

class SamplingCases : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = LoadCaseModel("table", dir_, "f32");
    ASSERT_NE(model_, nullptr);
    engine_ = std::make_unique<EngineHarness>(
        model_, HarnessOptions{.kv_dtype = KvDtype::kF32, .num_blocks = 64});
  }
  // All runs of the case, one after the other, validated as the service does. A refused one has
  // that status and no choices.
  std::vector<HarnessResult> Runs(const Json& c) {
    std::vector<HarnessResult> results;
    for (const Json& run : c["input"]["runs"]) results.push_back(Run(run));
    return results;
  }
  HarnessResult Run(const Json& run) {
    const SamplingParams p = Sampling(run["sampling"]);
    HarnessResult r;
    r.status = ValidateSamplingParams(p, model_->config.vocab);
    if (!r.status.ok()) return r;
    return engine_->RunOne({.prompt = run["prompt_ids"].get<Ids>(), .sampling = p});
  }

  TempDir dir_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<EngineHarness> engine_;
};

TEST_F(SamplingCases, TopKBeyondVocab) {
  const Json c = Case("pub-e-top_k_beyond_vocab");
  const std::vector<HarnessResult> r = Runs(c);
  ASSERT_EQ(r.size(), 5u);
  for (const HarnessResult& x : r) {
    ASSERT_TRUE(x.status.ok()) << x.status;
    EXPECT_EQ(x.choices[0].tokens.size(), 64u);
    EXPECT_EQ(x.choices[0].tokens, r[0].choices[0].tokens);
  }
  EXPECT_GT(std::set(r[0].choices[0].tokens.begin(), r[0].choices[0].tokens.end()).size(), 1u);
  Json one = c["input"]["runs"][0];
  one["sampling"]["top_k"] = 1;
  EXPECT_THAT(Run(one).choices[0].tokens, Each(97));
  one["sampling"]["top_k"] = -1;
  const HarnessResult negative = Run(one);
  if (negative.status.ok()) {
    EXPECT_EQ(negative.choices[0].tokens, r[0].choices[0].tokens);
  } else {
    EXPECT_EQ(negative.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(negative.status.message()), HasSubstr("top_k"));
  }
  // Greedy and sampled requests in one batch.
  std::vector<HarnessRequest> mixed;
  for (int i = 0; i < 5; ++i) {
    mixed.push_back({.prompt = {65}, .sampling = Sampling(c["input"]["runs"][i]["sampling"])});
    mixed.push_back({.prompt = {65}, .sampling = Greedy(64)});
  }
  const std::vector<HarnessResult> batch = engine_->Run(mixed);
  for (size_t i = 0; i < batch.size(); i += 2) {
    EXPECT_EQ(batch[i].choices[0].tokens, r[0].choices[0].tokens);
    EXPECT_THAT(batch[i + 1].choices[0].tokens, Each(97));
  }
}

TEST_F(SamplingCases, TopPZero) {
  for (const HarnessResult& r : Runs(Case("pub-e-top_p_zero"))) {
    ASSERT_TRUE(r.status.ok()) << r.status;
    EXPECT_EQ(r.choices[0].tokens, Ids(8, 97));
  }
}

TEST_F(SamplingCases, TinyTemperature) {
  const Json c = Case("pub-e-tiny_temperature");
  for (const HarnessResult& r : Runs(c)) {
    ASSERT_TRUE(r.status.ok()) << r.status;
    EXPECT_EQ(r.choices[0].tokens, c["expected"]["token_ids"].get<Ids>());
  }
}

TEST_F(SamplingCases, RepetitionPenalty) {
  const Json c = Case("pub-e-repetition_penalty");
  const std::vector<HarnessResult> r = Runs(c);
  for (size_t i = 0; i < r.size(); ++i) {
    ASSERT_TRUE(r[i].status.ok()) << r[i].status;
    EXPECT_EQ(r[i].choices[0].tokens, c["expected"]["token_ids"][i].get<Ids>()) << "run " << i;
  }
}

TEST_F(SamplingCases, LogitBias) {
  const Json c = Case("pub-e-logit_bias");
  const std::vector<HarnessResult> r = Runs(c);
  for (size_t i = 0; i < r.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(absl::StatusCodeToString(r[i].status.code()), c["expected"]["status"][i]);
    if (c["expected"]["token_ids"][i].is_null()) {
      EXPECT_THAT(std::string(r[i].status.message()), HasSubstr("logit_bias"));
      EXPECT_THAT(std::string(r[i].status.message()), HasSubstr(i == 6 ? "320" : "97"));
    } else {
      ASSERT_TRUE(r[i].status.ok()) << r[i].status;
      EXPECT_EQ(r[i].choices[0].tokens, c["expected"]["token_ids"][i].get<Ids>());
    }
  }
}

TEST_F(SamplingCases, MaxTokensZero) {
  const std::vector<HarnessResult> r = Runs(Case("pub-e-max_tokens_zero"));
  for (size_t i = 0; i < r.size(); ++i) {
    SCOPED_TRACE(i);
    if (!r[i].status.ok()) {
      EXPECT_EQ(r[i].status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(r[i].status.message()), HasSubstr("max_tokens"));
      continue;
    }
    EXPECT_EQ(r[i].choices[0].reason, FinishReason::kLength);
    EXPECT_EQ(r[i].completion_tokens, 0);
    EXPECT_EQ(r[i].choices[0].text, "");
    EXPECT_EQ(r[i].prompt_tokens, 3);
    if (i == 1) {
      ASSERT_EQ(r[i].prompt_logprobs.size(), 3u);
      EXPECT_TRUE(r[i].prompt_logprobs[0].top.empty());
      EXPECT_EQ(r[i].prompt_logprobs[2].top.size(), 1u);
    }
  }
}

TEST_F(SamplingCases, NChoices) {
  const std::vector<HarnessResult> r = Runs(Case("pub-e-n_choices"));
  for (const HarnessResult& x : r) ASSERT_TRUE(x.status.ok()) << x.status;
  ASSERT_EQ(r[0].choices.size(), 3u);
  for (const auto& choice : r[0].choices) EXPECT_EQ(choice.tokens, Ids(8, 97));
  EXPECT_EQ(r[0].prompt_tokens, 1);
  EXPECT_EQ(r[0].cached_tokens, 0);
  EXPECT_EQ(r[0].completion_tokens, 24);
  std::set<Ids> different;
  for (const auto& choice : r[1].choices) different.insert(choice.tokens);
  EXPECT_EQ(different.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(r[2].choices[i].tokens, r[1].choices[i].tokens);
  EXPECT_EQ(r[3].choices[0].tokens, r[1].choices[0].tokens);
}

TEST_F(SamplingCases, LogprobsRaw) {
  const Json c = Case("pub-e-logprobs_raw");
  const Json& top4 = c["expected"]["top4"];
  const float tolerance = c["expected"]["tolerance"];
  const std::vector<HarnessResult> r = Runs(c);
  for (size_t i = 0; i < r.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(r[i].status.ok()) << r[i].status;
    ASSERT_EQ(r[i].choices[0].logprobs.size(), 1u);
    const SampledToken& t = r[i].choices[0].logprobs[0];
    ASSERT_EQ(t.top.size(), 4u);
    for (int k = 0; k < 4; ++k) {
      EXPECT_EQ(t.top[k].token, 97 + k);
      EXPECT_NEAR(t.top[k].logprob, top4[std::to_string(97 + k)].get<float>(), tolerance);
      if (t.top[k].token == t.token) {
        EXPECT_EQ(t.logprob, t.top[k].logprob);
      }
    }
  }
  EXPECT_EQ(r.back().choices[0].tokens, Ids{98});
}

// ---- f: model files
// ------------------------------------------------------------------------------

// Loads and gives the greedy tokens of the case's prompt.
HarnessResult Generate(const std::string& make, const Json& input) {
  TempDir dir;
  const std::shared_ptr<const Model> model = LoadCaseModel(make, dir);
  if (model == nullptr) return {};
  EngineHarness engine(model, {.num_blocks = 16});
  return engine.RunOne(
      {.prompt = input["prompt_ids"].get<Ids>(), .sampling = Sampling(input["sampling"])});
}

TEST(ModelFileCases, FilesThatLoadGenerateTheExpectedTokens) {
  int generated = 0;
  for (const char* id :
       {"pub-f-st_header_and_offsets", "pub-f-cfg_rope_null", "pub-f-head_dim_absent",
        "pub-f-tied_but_head_present", "pub-f-shards", "pub-f-gguf_pre"}) {
    const Json c = Case(id);
    for (const std::string make : c["input"]["make"]) {
      SCOPED_TRACE(std::string(id) + " " + make);
      Json expected = c["expected"];
      if (expected.contains("by_make")) expected = expected["by_make"][make];
      if (expected.contains("greedy_by_make"))
        expected["greedy"] = expected["greedy_by_make"][make];
      if (expected.value("result", "") != "loads") continue;  // refusals: the loaders' own tests
      const HarnessResult r = Generate(make, c["input"]);
      ASSERT_EQ(r.choices.size(), 1u);
      EXPECT_EQ(r.choices[0].tokens, expected["greedy"].get<Ids>());
      ++generated;
    }
  }
  EXPECT_EQ(generated, 10);
}

TEST(ModelFileCases, EosSources) {
  const Json c = Case("pub-f-eos_sources");
  for (const std::string make : c["input"]["make"]) {
    SCOPED_TRACE(make);
    const HarnessResult r = Generate(make, c["input"]);
    ASSERT_EQ(r.choices.size(), 1u);
    EXPECT_EQ(r.choices[0].text, c["expected"]["text"].get<std::string>());
    EXPECT_EQ(r.choices[0].reason, FinishReason::kStop);
    EXPECT_LE(r.completion_tokens, c["expected"]["completion_tokens_at_most"].get<int>());
  }
}

TEST(ModelFileCases, HeadMissingTieAbsent) {
  const Json c = Case("pub-f-head_missing_tie_absent");
  TempDir dir;
  auto model = TryLoadTestModel(ExtractCaseModel("tie_absent_no_head", dir));
  if (!model.ok()) {
    EXPECT_THAT(std::string(model.status().message()), HasSubstr("lm_head.weight"));
    EXPECT_THAT(std::string(model.status().message()), HasSubstr("tie_word_embeddings"));
    return;
  }
  EngineHarness engine(*model, {.num_blocks = 16});
  const HarnessResult r = engine.RunOne({.prompt = c["input"]["prompt_ids"].get<Ids>(),
                                         .sampling = Sampling(c["input"]["sampling"])});
  EXPECT_THAT(r.choices[0].tokens, ElementsAre(99, 99, 99, 99, 99, 99, 99, 92));
}

// ---- g: KV cache
// ---------------------------------------------------------------------------------

class CacheCases : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = LoadCaseModel("tiny_qwen3", dir_);
    ASSERT_NE(model_, nullptr);
  }
  std::unique_ptr<EngineHarness> Fresh(HarnessOptions options = {.num_blocks = 128}) const {
    return std::make_unique<EngineHarness>(model_, options);
  }
  static HarnessRequest Request(Ids prompt, int32_t max_tokens = 8) {
    return {.prompt = std::move(prompt), .sampling = Greedy(max_tokens)};
  }
  static HarnessRequest Cold(HarnessRequest r) {  // skip_prefix_cache
    r.read_prefix_cache = false;
    return r;
  }

  TempDir dir_;
  std::shared_ptr<const Model> model_;
};

TEST_F(CacheCases, WholeBlocks) {
  const Json c = Case("pub-g-whole_blocks");
  for (int32_t length : {1, 15, 16, 17, 31, 32, 33, 48, 160}) {
    SCOPED_TRACE(length);
    auto engine = Fresh();
    HarnessRequest request = Request(P(length, length));
    request.sampling.num_logprobs = 5;
    const HarnessResult a = engine->RunOne(request);
    const HarnessResult b = engine->RunOne(request);
    ASSERT_TRUE(a.status.ok()) << a.status;
    EXPECT_EQ(a.cached_tokens, 0);
    EXPECT_LE(b.cached_tokens, length - 1);
    EXPECT_GE(b.cached_tokens, 16 * ((length - 1) / 16));
    EXPECT_EQ(Fingerprint(b), Fingerprint(a));
    const EngineStats stats = engine->stats();
    EXPECT_LE(stats.prefix_hits_tokens, stats.prefix_queries_tokens);
    EXPECT_EQ(stats.prefix_hits_tokens, b.cached_tokens);
  }
}

TEST_F(CacheCases, PromptLogprobs) {
  const HarnessOptions options{.num_blocks = 128, .max_num_batched_tokens = 32};
  auto engine = Fresh(options);
  HarnessRequest with = Request(P(3, 70));
  with.sampling.num_prompt_logprobs = 2;
  const HarnessResult a = engine->RunOne(with);
  const HarnessResult b = engine->RunOne(Request(P(3, 70)));
  const HarnessResult c = engine->RunOne(with);
  ASSERT_EQ(a.prompt_logprobs.size(), 70u);
  EXPECT_TRUE(a.prompt_logprobs[0].top.empty());
  for (size_t i = 1; i < 70; ++i) {
    EXPECT_EQ(a.prompt_logprobs[i].token, P(3, 70)[i]);
    EXPECT_EQ(a.prompt_logprobs[i].top.size(), 2u);
  }
  EXPECT_EQ(Fingerprint(c), Fingerprint(a));
  EXPECT_EQ(c.cached_tokens, 0);
  EXPECT_EQ(b.cached_tokens, 64);  // the request stored its blocks

  with.prompt = P(3, 64) + P(9, 40);
  const HarnessResult d = engine->RunOne(with);
  const HarnessResult e = Fresh()->RunOne(with);  // and in one chunk
  EXPECT_EQ(d.cached_tokens, 0);
  EXPECT_EQ(Fingerprint(d), Fingerprint(e));
  EXPECT_EQ(Fingerprint(engine->RunOne(Cold(with))), Fingerprint(e));
}

TEST_F(CacheCases, SamplingIsNoKey) {
  auto engine = Fresh();
  const HarnessResult a = engine->RunOne(Request(P(5, 40)));
  HarnessRequest sampled = Request(P(5, 40));
  sampled.sampling.temperature = 1;
  sampled.sampling.seed = 3;
  EXPECT_EQ(engine->RunOne(sampled).cached_tokens, 32);
  HarnessRequest biased = Request(P(5, 40));
  biased.sampling.logit_bias = {{97, 5.0f}};
  biased.sampling.stop = {"zz"};
  biased.sampling.num_logprobs = 3;
  EXPECT_EQ(engine->RunOne(biased).cached_tokens, 32);

  const Ids tokens = a.choices[0].tokens;
  ASSERT_EQ(tokens.size(), 8u);
  const HarnessRequest next = Request(P(5, 40) + tokens + P(7, 20));
  const HarnessResult d = engine->RunOne(next);
  EXPECT_EQ(d.cached_tokens, 32);  // the 48th token was sampled and never run
  Ids changed = tokens;
  changed[2] = (changed[2] + 1) % 256;
  const HarnessRequest other = Request(P(5, 40) + changed + P(7, 20));
  const HarnessResult e = engine->RunOne(other);
  EXPECT_LE(e.cached_tokens, 32);
  EXPECT_EQ(Fingerprint(d), Fingerprint(Fresh()->RunOne(next)));
  EXPECT_EQ(Fingerprint(e), Fingerprint(Fresh()->RunOne(other)));
}

TEST_F(CacheCases, StopAtBlockBorder) {
  struct Lengths {
    int32_t prompt, output;
  };
  for (const Lengths& l : {Lengths{20, 12}, {16, 16}, {31, 1}, {30, 2}, {24, 24}}) {
    SCOPED_TRACE(l.prompt);
    auto engine = Fresh();
    const HarnessResult a = engine->RunOne(Request(P(l.prompt, l.prompt), l.output));
    const HarnessRequest next = Request(P(l.prompt, l.prompt) + a.choices[0].tokens + Ids{7});
    const HarnessResult b = engine->RunOne(next);
    EXPECT_LE(b.cached_tokens, 16 * ((l.prompt + l.output - 1) / 16));
    EXPECT_EQ(Fingerprint(b), Fingerprint(engine->RunOne(Cold(next))));
    EXPECT_EQ(Fingerprint(b), Fingerprint(Fresh()->RunOne(next)));
  }
}

// Siblings of the case: the last block is not filed early when a stop token, a stop string or a
// cancel ends the sequence at a border, also with plans one step ahead.
TEST_F(CacheCases, OtherEndsAtABlockBorder) {
  for (int depth : {1, 2}) {
    for (const char* how : {"stop token", "cancel"}) {
      SCOPED_TRACE(std::string(how) + ", depth " + std::to_string(depth));
      auto engine = Fresh({.num_blocks = 128, .max_steps_in_flight = depth});
      const HarnessResult whole = Fresh()->RunOne(Request(P(20, 20), 40));
      const Ids& tokens = whole.choices[0].tokens;
      HarnessRequest request = Request(P(20, 20), 40);
      // The token that makes 32, unless it came before.
      const int32_t last = tokens[11];
      if (std::string(how) == "stop token") {
        request.sampling.stop_token_ids = {last};
        engine->RunOne(request);
      } else {
        const RequestId id = engine->Submit(request);
        while (engine->result(id).choices[0].tokens.size() < 12) engine->Step();
        engine->Cancel(id);
        engine->RunUntilIdle();
        EXPECT_EQ(engine->result(id).status.code(), absl::StatusCode::kCancelled);
      }
      const Ids after(tokens.begin(), tokens.begin() + 12);
      const HarnessRequest next = Request(P(20, 20) + after + Ids{7});
      EXPECT_EQ(Fingerprint(engine->RunOne(next)), Fingerprint(Fresh()->RunOne(next)));
    }
  }
}

TEST_F(CacheCases, PreemptWithHits) {
  auto request = [](int32_t a) {
    HarnessRequest r = Request(P(a, 34), 60);
    r.sampling.presence_penalty = 0.5f;
    return r;
  };
  const HarnessOptions small{.num_blocks = 8};
  auto engine = Fresh(small);
  const std::vector<HarnessResult> r = engine->Run({request(1), request(2)});
  for (int32_t i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(r[static_cast<size_t>(i)].status.ok()) << r[static_cast<size_t>(i)].status;
    const HarnessResult solo = Fresh(small)->RunOne(request(1 + i));
    EXPECT_EQ(Fingerprint(r[static_cast<size_t>(i)]), Fingerprint(solo));
    EXPECT_EQ(r[static_cast<size_t>(i)].prompt_tokens, 34);
    EXPECT_EQ(r[static_cast<size_t>(i)].completion_tokens, 60);
  }
  const EngineStats stats = engine->stats();
  EXPECT_GE(stats.preemptions, 1);
  // Recomputes are no queries and no hits of users.
  EXPECT_LE(stats.prefix_queries_tokens, 68);
  EXPECT_EQ(stats.prefix_hits_tokens, 0);
  EXPECT_EQ(stats.prompt_tokens, 68);
  EXPECT_EQ(stats.generated_tokens, 120);
}

TEST_F(CacheCases, CancelInPrefill) {
  const HarnessOptions options{.num_blocks = 128, .max_num_batched_tokens = 32};
  const HarnessResult z = Fresh(options)->RunOne(Request(P(8, 600)));
  for (int moment = 0; moment < 20; ++moment) {
    SCOPED_TRACE(moment);
    auto engine = Fresh(options);
    const int32_t free_at_start = engine->stats().blocks_free;
    const RequestId x = engine->Submit(Request(P(8, 600)));
    for (int step = 0; step < moment; ++step) engine->Step();
    engine->Cancel(x);
    while (engine->core().num_steps_in_flight() > 0) engine->Step();
    const EngineStats after = engine->stats();
    EXPECT_EQ(after.blocks_free + after.blocks_cached, free_at_start);
    EXPECT_EQ(after.tickets_open, 0);
    const HarnessResult y = engine->RunOne(Request(P(8, 600)));
    EXPECT_LE(y.cached_tokens, std::min(592, 32 * moment));
    EXPECT_EQ(Fingerprint(y), Fingerprint(z));
  }
  // Two equal prompts that start in one step.
  auto engine = Fresh(options);
  for (const HarnessResult& r : engine->Run({Request(P(8, 600)), Request(P(8, 600))})) {
    EXPECT_EQ(Fingerprint(r), Fingerprint(z));
  }
}

TEST(Fp8Cases, QuantiseE4m3) {
  const Json c = Case("pub-g-fp8_e4m3");
  const Json& rows = c["input"]["x"];
  constexpr int32_t kHeadSize = 16;  // the rows have 8 numbers; zeros behind them change nothing
  const KvLayout layout{KvDtype::kFp8E4m3, 16, 1, 1, kHeadSize};
  const auto count = static_cast<int32_t>(rows.size());
  ASSERT_LE(count, layout.block_size);
  std::vector<float> x(static_cast<size_t>(count) * kHeadSize, 0.0f);
  std::vector<int64_t> slots;
  for (int32_t r = 0; r < count; ++r) {
    slots.push_back(r);
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const std::string hex = rows[r][i];
      x[static_cast<size_t>(r) * kHeadSize + i] =
          std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
    }
  }
  for (const Impl<KvWriteArgs>& impl : KvWriteImpls()) {
    if (impl.isa > DetectIsa()) continue;
    SCOPED_TRACE(impl.name);
    auto page = HugeBuffer::Allocate(layout.page_bytes(), "page");
    ASSERT_TRUE(page.ok());
    std::vector<uint8_t> non_finite(static_cast<size_t>(count), 0);
    KvWriteArgs args;
    args.k = args.v = x.data();
    args.k_stride = args.v_stride = kHeadSize;
    args.kv = {page->data(), layout.page_bytes()};
    args.layout = layout;
    args.num_tokens = count;
    args.slots = slots.data();
    args.non_finite = non_finite.data();
    ThreadPool pool(1);
    std::vector<std::byte> memory(1 << 16);
    ScratchArena scratch(memory);
    ExecContext context{pool, scratch};
    ASSERT_TRUE(impl.run(args, context).ok());
    const auto* bytes = reinterpret_cast<const uint8_t*>(page->data());
    for (int32_t r = 0; r < count; ++r) {
      SCOPED_TRACE(r);
      const Json& want = c["expected"]["rows"][static_cast<size_t>(r)];
      uint16_t k_scale = 0, v_scale = 0;
      std::memcpy(&k_scale, bytes + layout.k_scale_offset_bytes() + 2 * r, 2);
      std::memcpy(&v_scale, bytes + layout.v_scale_offset_bytes() + 2 * r, 2);
      const auto scale = std::stoul(want["scale_f16_hex"].get<std::string>(), nullptr, 16);
      EXPECT_EQ(k_scale, scale);
      EXPECT_EQ(v_scale, scale);
      const std::string codes = want["codes_hex"];
      for (int32_t d = 0; d < 8; ++d) {
        auto code = static_cast<int>(std::stoul(codes.substr(2 * d, 2), nullptr, 16));
        int k = bytes[layout.k_element_offset(r, d)];
        int v = bytes[layout.v_offset_bytes() + layout.v_element_offset(r, d)];
        if (scale == 0) code &= 0x7f, k &= 0x7f, v &= 0x7f;  // 00 and 80 are equal
        EXPECT_EQ(k, code) << "dim " << d;
        EXPECT_EQ(v, code) << "dim " << d;
      }
    }
  }
}

TEST_F(CacheCases, NanStaysAlone) {
  TempDir dir;
  auto loaded = TryLoadTestModel(ExtractCaseModel("nan_row", dir));
  if (!loaded.ok()) {  // then the kernel test alone holds
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("embed_tokens"));
    return;
  }
  model_ = *loaded;
  for (KvDtype kv : {KvDtype::kBf16, KvDtype::kFp8E4m3, KvDtype::kF32}) {
    SCOPED_TRACE(KvDtypeName(kv));
    const HarnessOptions options{.kv_dtype = kv, .num_blocks = 16};
    const HarnessRequest bad = Request(P(4, 40) + Ids{250} + P(6, 30));
    const HarnessRequest good = Request(P(4, 40) + P(6, 30));
    auto engine = Fresh(options);
    const HarnessResult a = engine->RunOne(Request(P(4, 40)));
    ASSERT_TRUE(a.status.ok()) << a.status;

    // Beside another in one batch.
    const std::vector<HarnessResult> both = engine->Run({bad, Request(P(4, 40))});
    const HarnessResult& b = both[0];
    if (b.status.ok()) {
      EXPECT_EQ(b.choices[0].reason, FinishReason::kError);
    } else {
      EXPECT_EQ(b.status.code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(b.status.message()), HasSubstr("finite"));
    }
    EXPECT_EQ(b.choices[0].tokens.size(), 0u);
    EXPECT_EQ(Fingerprint(both[1]), Fingerprint(a));

    const HarnessResult c = engine->RunOne(good);
    EXPECT_LE(c.cached_tokens, 32);
    EXPECT_EQ(Fingerprint(c), Fingerprint(Fresh(options)->RunOne(good)));
    const HarnessResult d = engine->RunOne(bad);
    EXPECT_LE(d.cached_tokens, 32);

    // Its pages, used again: the pool of 16 blocks goes round several times.
    for (int32_t i = 10; i < 16; ++i) {
      const HarnessRequest later = Request(P(i, 100 + i));
      EXPECT_EQ(Fingerprint(engine->RunOne(later)), Fingerprint(Fresh(options)->RunOne(later)));
    }
  }
}

TEST_F(CacheCases, Tenants) {
  auto engine = Fresh();
  auto run = [&](const std::string& salt) {
    HarnessRequest r = Request(P(2, 64));
    r.tenant_salt = salt;
    return engine->RunOne(r).cached_tokens;
  };
  EXPECT_EQ(run("A"), 0);
  EXPECT_EQ(run("B"), 0);
  EXPECT_EQ(run("A"), 48);
  EXPECT_EQ(run(""), 0);
  auto root = [](const char* salt, const char* adapter) {
    BlockKeyRoot r;
    r.model_digest = "m";
    r.salt = salt;
    r.adapter = adapter;
    return r.Compute().ToHex();
  };
  const std::set<std::string> keys = {root("ab", "c"), root("a", "bc"), root("", "abc"),
                                      root("abc", "")};
  EXPECT_EQ(keys.size(), 4u);
}

}  // namespace
}  // namespace quire::test
