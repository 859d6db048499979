// The public cases about the KV cache (tests/data/cases_public, area g), at the core.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/core_driver.h"
#include "worker/engine/engine_core.h"
#include "worker/engine/fake_backend.h"

namespace quire {
namespace {

using test::CoreDriver;
using test::ExpectAsAlone;
using test::FakeBackend;
using test::Gathered;
using test::MakeRequest;
using test::Params;
using test::Pattern;
using test::SmallOptions;

constexpr FakeBackend::Options kBackend{.num_blocks = 64, .block_size = 16, .num_slots = 16};

TEST(EngineCoreCache, WholeBlocksLeaveOneTokenToCompute) {
  CoreDriver driver(SmallOptions(kBackend), kBackend);
  for (const int length : {1, 15, 16, 17, 31, 32, 33, 48, 160}) {
    SCOPED_TRACE(length);
    auto params = Params(8);
    params->num_logprobs = 5;
    const RequestId a = driver.Submit(MakeRequest(Pattern(length, length), params));
    driver.Run();
    const EngineStats before = driver.core->stats();
    const RequestId b = driver.Submit(MakeRequest(Pattern(length, length), params));
    driver.Run();
    ExpectAsAlone(driver, a);
    ExpectAsAlone(driver, b);
    EXPECT_EQ(driver.results[a].started.cached_tokens, 0);
    EXPECT_EQ(driver.results[b].started.cached_tokens, 16 * ((length - 1) / 16));
    EXPECT_EQ(driver.results[b].finished.cached_tokens, 16 * ((length - 1) / 16));
    const EngineStats after = driver.core->stats();
    EXPECT_EQ(after.prefix_queries_tokens - before.prefix_queries_tokens, length);
    EXPECT_EQ(after.prefix_hits_tokens - before.prefix_hits_tokens, 16 * ((length - 1) / 16));
  }
}

TEST(EngineCoreCache, BlockThatEndsWithTheSampledTokenIsNotFiled) {
  for (const int depth : {1, 2}) {
    for (const auto& [length, num_tokens] :
         std::vector<std::pair<int, int>>{{20, 12}, {16, 16}, {31, 1}, {30, 2}, {24, 24}}) {
      SCOPED_TRACE(testing::Message() << length << "+" << num_tokens << " depth " << depth);
      EngineOptions options = SmallOptions(kBackend);
      options.max_steps_in_flight = depth;
      CoreDriver driver(options, kBackend);
      const RequestId a = driver.Submit(MakeRequest(Pattern(length, length), Params(num_tokens)));
      driver.Run();
      ExpectAsAlone(driver, a);
      std::vector<int32_t> longer = Pattern(length, length);
      const auto& tokens = driver.results[a].choices[0].token_ids;
      longer.insert(longer.end(), tokens.begin(), tokens.end());
      longer.push_back(7);
      const RequestId b = driver.Submit(MakeRequest(longer, Params(8)));
      driver.Run();
      ExpectAsAlone(driver, b);
      EXPECT_EQ(driver.results[b].started.cached_tokens, 16 * ((length + num_tokens - 1) / 16));
    }
  }
}

TEST(EngineCoreCache, SamplingIsNoPartOfTheKey) {
  CoreDriver driver(SmallOptions(kBackend), kBackend);
  const Gathered a = driver.Generate(MakeRequest(Pattern(5, 40), Params(8)));
  auto other = Params(8);
  other->seed = 3;
  other->num_logprobs = 2;
  other->stop = {"zz"};
  EXPECT_EQ(driver.Generate(MakeRequest(Pattern(5, 40), other)).started.cached_tokens, 32);
  std::vector<int32_t> next = Pattern(5, 40);
  next.insert(next.end(), a.choices[0].token_ids.begin(), a.choices[0].token_ids.end());
  const std::vector<int32_t> more = Pattern(7, 20);
  next.insert(next.end(), more.begin(), more.end());
  std::vector<int32_t> changed = next;
  changed[42] = (changed[42] + 1) % 60;
  const RequestId d = driver.Submit(MakeRequest(next, Params(8)));
  const RequestId e = driver.Submit(MakeRequest(changed, Params(8)));
  driver.Run();
  EXPECT_EQ(driver.results[d].started.cached_tokens, 32);
  EXPECT_EQ(driver.results[e].started.cached_tokens, 32);
  ExpectAsAlone(driver, d);
  ExpectAsAlone(driver, e);
}

TEST(EngineCoreCache, PreemptedRequestsGoOnAsIfNothingHappened) {
  for (const int depth : {1, 2}) {
    FakeBackend::Options backend = kBackend;
    backend.num_blocks = 8;
    EngineOptions options = SmallOptions(backend);
    options.max_steps_in_flight = depth;
    CoreDriver driver(options, backend);
    auto params = Params(60);
    params->presence_penalty = 0.5;
    const RequestId r0 = driver.Submit(MakeRequest(Pattern(1, 34), params));
    const RequestId r1 = driver.Submit(MakeRequest(Pattern(2, 34), params));
    driver.Run();
    ExpectAsAlone(driver, r0);
    ExpectAsAlone(driver, r1);
    const EngineStats stats = driver.core->stats();
    EXPECT_GE(stats.preemptions, 1);
    EXPECT_EQ(stats.prefix_queries_tokens, 2 * 34);
    EXPECT_EQ(stats.prefix_hits_tokens, 0);
    EXPECT_EQ(stats.generated_tokens, 120);
    // The older one never waits: its prefill, then a token a step.
    EXPECT_LE(driver.results[r0].finished.total_us, driver.results[r1].finished.total_us);
  }
}

TEST(EngineCoreCache, CancelInPrefillLeavesOnlyFinishedBlocks) {
  for (const int depth : {1, 2}) {
    EngineOptions options = SmallOptions(kBackend);
    options.max_num_batched_tokens = 32;
    options.max_steps_in_flight = depth;
    for (int steps = 1; steps <= 20; ++steps) {
      SCOPED_TRACE(testing::Message() << steps << " steps, depth " << depth);
      CoreDriver driver(options, kBackend);
      const RequestId x = driver.Submit(MakeRequest(Pattern(8, 600), Params(8)));
      for (int i = 0; i < steps; ++i) driver.Step();
      driver.Cancel(x, absl::CancelledError("client went away"));
      EXPECT_EQ(driver.results[x].num_finished, 1);
      driver.Complete();  // what was in flight
      const EngineStats stats = driver.core->stats();
      EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
      EXPECT_EQ(stats.tickets_open, 0);
      const RequestId y = driver.Submit(MakeRequest(Pattern(8, 600), Params(8)));
      driver.Run();
      ExpectAsAlone(driver, y);
      EXPECT_LE(driver.results[y].started.cached_tokens, 32 * steps);
      EXPECT_GE(driver.results[y].started.cached_tokens, std::min(32 * (steps - 1), 592));
    }
  }
}

TEST(EngineCoreCache, EqualPromptsInOneStepAreComputedOnce) {
  for (const int depth : {1, 2}) {
    EngineOptions options = SmallOptions(kBackend);
    options.max_steps_in_flight = depth;
    options.max_num_batched_tokens = 48;
    CoreDriver driver(options, kBackend);
    const RequestId a = driver.Submit(MakeRequest(Pattern(3, 100), Params(4)));
    const RequestId b = driver.Submit(MakeRequest(Pattern(3, 100), Params(4)));
    driver.Run();
    ExpectAsAlone(driver, a);
    ExpectAsAlone(driver, b);
    EXPECT_EQ(driver.results[b].started.cached_tokens, 96);
    EXPECT_EQ(driver.backend.num_rows(), 100 + 3 + 4 + 3);
  }
}

TEST(EngineCoreCache, WhoeverWaitsForBlocksGoesOnWhenTheirMakerEnds) {
  EngineOptions options = SmallOptions(kBackend);
  options.max_num_batched_tokens = 32;
  CoreDriver driver(options, kBackend);
  const RequestId a = driver.Submit(MakeRequest(Pattern(3, 200), Params(4)));
  const RequestId b = driver.Submit(MakeRequest(Pattern(3, 200), Params(4)));
  driver.Step();
  driver.Step();
  EXPECT_EQ(driver.results[b].num_started, 0);
  driver.Cancel(a, absl::CancelledError("gone"));
  driver.Run();
  ExpectAsAlone(driver, b);
  EXPECT_EQ(driver.results[b].started.cached_tokens, 64);
}

TEST(EngineCoreCache, ChoicesShareTheirPrompt) {
  for (const int depth : {1, 2}) {
    for (const int length : {1, 16, 20, 31, 32, 40}) {
      SCOPED_TRACE(testing::Message() << length << " depth " << depth);
      EngineOptions options = SmallOptions(kBackend);
      options.max_steps_in_flight = depth;
      CoreDriver driver(options, kBackend);
      auto params = Params(9);
      params->n = 4;
      params->seed = 7;
      const RequestId id = driver.Submit(MakeRequest(Pattern(2, length), params));
      driver.Run();
      ExpectAsAlone(driver, id);
      EXPECT_EQ(driver.backend.num_rows(), length + 4 * 8);
      EXPECT_EQ(driver.backend.num_copies(), length % 16 == 0 ? 0 : 3);
      auto one = Params(9);
      one->seed = 7;
      EXPECT_EQ(driver.Generate(MakeRequest(Pattern(2, length), one)).choices[0].token_ids,
                driver.results[id].choices[0].token_ids);
    }
  }
}

TEST(EngineCoreCache, PromptLogprobsComputeTheWholePrompt) {
  EngineOptions options = SmallOptions(kBackend);
  options.max_num_batched_tokens = 32;
  CoreDriver driver(options, kBackend);
  for (const int length : {1, 2, 70, 104}) {
    SCOPED_TRACE(length);
    auto params = Params(8);
    params->num_prompt_logprobs = 2;
    const RequestId a = driver.Submit(MakeRequest(Pattern(3, length), params));
    driver.Run();
    ExpectAsAlone(driver, a);
    const Gathered b = driver.Generate(MakeRequest(Pattern(3, length), Params(8)));
    EXPECT_EQ(b.started.cached_tokens, (length - 1) / 16 * 16);  // it stored its blocks
    const RequestId c = driver.Submit(MakeRequest(Pattern(3, length), params));
    driver.Run();
    ExpectAsAlone(driver, c);
    EXPECT_EQ(driver.results[c].started.cached_tokens, 0);
  }
}

TEST(EngineCoreCache, MaxTokensZeroRunsThePromptOnly) {
  for (const int num_scores : {-1, 1}) {
    for (const int n : {1, 3}) {
      CoreDriver driver(SmallOptions(kBackend), kBackend);
      auto params = Params(0);
      params->num_prompt_logprobs = num_scores;
      params->n = n;
      const RequestId id = driver.Submit(MakeRequest(Pattern(4, 33), params));
      driver.Run();
      ExpectAsAlone(driver, id);
      EXPECT_EQ(driver.results[id].finished.choices[0].reason, FinishReason::kLength);
      EXPECT_EQ(driver.results[id].finished.completion_tokens, 0);
      EXPECT_EQ(driver.core->stats().blocks_cached, 2);
    }
  }
}

TEST(EngineCoreCache, NotFiniteEndsOneRequestAndFilesNothing) {
  for (const int depth : {1, 2}) {
    EngineOptions options = SmallOptions(kBackend);
    options.max_steps_in_flight = depth;
    CoreDriver driver(options, kBackend);
    std::vector<int32_t> bad = Pattern(4, 40);
    bad.push_back(test::kNanToken);
    const std::vector<int32_t> rest = Pattern(6, 30);
    bad.insert(bad.end(), rest.begin(), rest.end());
    driver.Generate(MakeRequest(Pattern(4, 40), Params(8)));
    const RequestId other = driver.Submit(MakeRequest(Pattern(9, 40), Params(8)));
    const RequestId b = driver.Submit(MakeRequest(bad, Params(8)));
    driver.Run();
    ExpectAsAlone(driver, other);
    EXPECT_EQ(driver.results[b].finished.status.code(), absl::StatusCode::kInternal);
    EXPECT_NE(driver.results[b].finished.status.message().find("not finite"), std::string::npos);
    const Gathered d = driver.Generate(MakeRequest(bad, Params(8)));
    EXPECT_EQ(d.started.cached_tokens, 32);
    EXPECT_EQ(driver.core->stats().tickets_open, 0);
  }
}

TEST(EngineCoreCache, TenantsNeverShare) {
  CoreDriver driver(SmallOptions(kBackend), kBackend);
  const auto ask = [&](uint8_t tenant) {
    EngineRequest request = MakeRequest(Pattern(2, 64), Params(4));
    request.root.bytes[0] = tenant;
    return driver.Generate(std::move(request)).started.cached_tokens;
  };
  EXPECT_EQ(ask(1), 0);
  EXPECT_EQ(ask(2), 0);
  EXPECT_EQ(ask(1), 48);
  EXPECT_EQ(ask(0), 0);
}

}  // namespace
}  // namespace quire
