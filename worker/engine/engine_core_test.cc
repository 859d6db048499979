#include "worker/engine/engine_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/core_driver.h"
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

TEST(EngineCore, RunsOneSequence) {
  CoreDriver driver(SmallOptions(kBackend), kBackend);
  const RequestId id = driver.Submit(MakeRequest(Pattern(1, 20), Params(10)));
  driver.Run();
  ExpectAsAlone(driver, id);
  EXPECT_TRUE(driver.core->idle());
  EXPECT_EQ(driver.backend.num_rows(), 20 + 9);  // the last token is never run
  const EngineStats stats = driver.core->stats();
  EXPECT_EQ(stats.tickets_open, 0);
  EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
  EXPECT_EQ(stats.blocks_cached, 1);
  EXPECT_EQ(stats.requests_ok, 1);
}

TEST(EngineCore, RunsManySequencesAtBothDepthsAndAnyChunk) {
  for (const int depth : {1, 2}) {
    for (const int rows : {1, 3, 16, 37, 256}) {
      for (const bool paged : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << "depth " << depth << " rows " << rows << " paged " << paged);
        EngineOptions options = SmallOptions(kBackend);
        options.max_steps_in_flight = depth;
        options.max_num_batched_tokens = rows;
        options.paged = paged;
        options.max_model_len = 128;
        CoreDriver driver(options, kBackend);
        for (int i = 0; i < 12; ++i) {
          driver.Submit(MakeRequest(Pattern(i, 1 + 7 * i), Params(1 + i * 3)));
          driver.Step();
        }
        driver.Run();
        for (const auto& [id, request] : driver.requests) ExpectAsAlone(driver, id);
        EXPECT_EQ(driver.core->stats().tickets_open, 0);
      }
    }
  }
}

// --- Refusals ---

TEST(EngineCore, RefusesWhatCannotRunAndNamesTheLimit) {
  EngineOptions options = SmallOptions(kBackend);
  options.num_blocks = 4;
  options.max_model_len = 100;
  options.max_num_seqs = 3;
  options.max_queue = 2;
  FakeBackend::Options backend = kBackend;
  backend.num_blocks = 4;
  struct Case {
    const char* name;
    int32_t prompt, max_tokens, n, resume;
    const char* message;  // "" = taken
  };
  const Case cases[] = {
      {"empty", 0, 1, 1, 0, "prompt has 0 tokens"},
      {"long_prompt", 101, 0, 1, 0, "prompt has 101 tokens, max_model_len is 100"},
      {"too_many_tokens", 60, 41, 1, 0,
       "prompt has 60 tokens and max_tokens is 41, together over max_model_len 100"},
      {"fills_the_pool", 60, 5, 1, 0, ""},
      {"over_the_pool", 60, 6, 1, 0, "takes 5 KV blocks of 16 tokens, the pool has 4"},
      {"to_the_end", 60, -1, 1, 0, "max_tokens is 40"},
      {"n_too_large", 5, 5, 4, 0, "n is 4, must be in [1, 3]"},
      {"n_zero", 5, 5, 0, 0, "n is 0"},
      {"resume_of_two", 5, 5, 2, 1, "must be 1 with resumed tokens"},
      {"resume_too_long", 5, 5, 1, 6, "6 resumed tokens, max_tokens is 5"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    CoreDriver driver(options, backend);
    auto params = Params(c.max_tokens);
    params->n = c.n;
    EngineRequest request = MakeRequest(Pattern(1, c.prompt), params);
    request.resume = Pattern(2, c.resume);
    const RequestId id = driver.Submit(std::move(request));
    const Gathered& g = driver.results[id];
    if (*c.message == '\0') {
      EXPECT_EQ(g.num_finished, 0);
      driver.Run();
      ExpectAsAlone(driver, id);
    } else {
      ASSERT_EQ(g.num_finished, 1);
      EXPECT_TRUE(absl::IsInvalidArgument(g.finished.status));
      EXPECT_NE(g.finished.status.message().find(c.message), std::string::npos)
          << g.finished.status;
    }
  }
  CoreDriver driver(options, backend);
  for (int i = 0; i < 2; ++i) driver.Submit(MakeRequest(Pattern(i, 5), Params(5)));
  const RequestId id = driver.Submit(MakeRequest(Pattern(3, 5), Params(5)));
  EXPECT_TRUE(absl::IsResourceExhausted(driver.results[id].finished.status));
}

// --- Stops and text ---

TEST(EngineCore, StopsByTokenStringAndLength) {
  // What comes out is fixed by the seed; find where to stop it.
  const auto ask = [](auto&& change) {
    CoreDriver driver(SmallOptions(kBackend), kBackend);
    auto params = Params(30);
    change(*params);
    const RequestId id = driver.Submit(MakeRequest(Pattern(5, 20), params));
    driver.Run();
    ExpectAsAlone(driver, id);
    return driver.results[id];
  };
  const Gathered whole = ask([](SamplingParams&) {});
  const std::vector<int32_t>& tokens = whole.choices[0].token_ids;
  ASSERT_EQ(tokens.size(), 30u);
  EXPECT_EQ(whole.finished.choices[0].reason, FinishReason::kLength);

  // The end token counts and is among the ids; the text never has it.
  const size_t at = std::find(tokens.begin(), tokens.end(), tokens[9]) - tokens.begin();
  const Gathered by_id = ask([&](SamplingParams& p) { p.stop_token_ids = {tokens[9]}; });
  EXPECT_EQ(by_id.finished.choices[0].reason, FinishReason::kStop);
  EXPECT_EQ(by_id.finished.completion_tokens, static_cast<int32_t>(at) + 1);
  EXPECT_EQ(by_id.choices[0].token_ids.back(), tokens[9]);
  EXPECT_EQ(by_id.finished.choices[0].stop_matched, test::FakeTokenizer().TokenBytes(tokens[9]));

  const std::string stop = whole.choices[0].text.substr(6, 4);
  const Gathered by_text = ask([&](SamplingParams& p) { p.stop = {"zzzz", stop}; });
  EXPECT_EQ(by_text.finished.choices[0].reason, FinishReason::kStop);
  EXPECT_EQ(by_text.finished.choices[0].stop_matched, stop);
  EXPECT_EQ(by_text.choices[0].text,
            whole.choices[0].text.substr(0, whole.choices[0].text.find(stop)));
  const Gathered later = ask([&](SamplingParams& p) {
    p.stop = {stop};
    p.min_tokens = 25;
  });
  EXPECT_GE(later.finished.completion_tokens, 25);
}

TEST(EngineCore, SpecialTokensStop) {
  int num_eos = 0, num_special = 0;
  for (int seed = 0; seed < 40; ++seed) {
    CoreDriver driver(SmallOptions(kBackend), kBackend);
    auto params = Params(60);
    params->seed = seed;
    params->ignore_eos = seed % 2 == 0;
    params->stop = {"<end>"};  // a stop that spells a special token stops on its id too
    const RequestId id = driver.Submit(MakeRequest(Pattern(5, 20), params));
    driver.Run();
    ExpectAsAlone(driver, id);
    const Gathered& g = driver.results[id];
    if (g.finished.choices[0].reason != FinishReason::kStop) continue;
    const int32_t last = g.choices[0].token_ids.back();
    num_eos += last == test::kFakeEos;
    num_special += last == test::kFakeSpecial;
    EXPECT_EQ(g.finished.choices[0].stop_matched, last == test::kFakeEos ? "" : "<end>");
  }
  EXPECT_GT(num_eos, 0);
  EXPECT_GT(num_special, 0);
}

TEST(EngineCore, ResumedTokensAreOutputAndGiveNoTextAgain) {
  auto params = Params(24);
  params->stop = {"@@@"};
  params->min_tokens = 20;
  params->presence_penalty = 1;
  const EngineRequest whole = MakeRequest(Pattern(3, 21), params);
  const test::Simulated want = test::Simulate(whole, {test::kFakeEos}, nullptr, 0);
  for (size_t num_resumed = 0; num_resumed <= want.token_ids.size(); ++num_resumed) {
    SCOPED_TRACE(num_resumed);
    CoreDriver driver(SmallOptions(kBackend), kBackend);
    EngineRequest request = whole;
    request.resume.assign(want.token_ids.begin(), want.token_ids.begin() + num_resumed);
    const RequestId id = driver.Submit(std::move(request));
    driver.Run();
    ExpectAsAlone(driver, id);
    EXPECT_EQ(driver.results[id].choices[0].token_ids.size(), want.token_ids.size() - num_resumed);
  }
}

// --- Who runs when ---

TEST(EngineCore, CreditsStopASequenceUntilItsClientReads) {
  for (const int depth : {1, 2}) {
    EngineOptions options = SmallOptions(kBackend);
    options.max_steps_in_flight = depth;
    CoreDriver driver(options, kBackend);
    EngineRequest request = MakeRequest(Pattern(1, 20), Params(10));
    request.credit_tokens = 3;
    const RequestId id = driver.Submit(std::move(request));
    driver.Run();
    EXPECT_EQ(driver.results[id].choices[0].token_ids.size(), 3u);
    EXPECT_GT(driver.core->stats().blocks_held, 0);  // it keeps its blocks
    driver.Consumed(id, 2);
    driver.Run();
    EXPECT_EQ(driver.results[id].choices[0].token_ids.size(), 5u);
    driver.Consumed(id, 100);
    driver.Run();
    ExpectAsAlone(driver, id);
  }
}

TEST(EngineCore, ClientsThatReadNothingHarmNoOthers) {
  FakeBackend::Options backend = kBackend;
  backend.num_blocks = 8;
  backend.num_slots = 2;
  CoreDriver driver(SmallOptions(backend), backend);
  std::vector<RequestId> lazy;
  for (int i = 0; i < 4; ++i) {  // more than there are slots
    EngineRequest request = MakeRequest(Pattern(i, 40), Params(20));
    request.credit_tokens = 1;
    lazy.push_back(driver.Submit(std::move(request)));
    driver.Run();
  }
  const RequestId quick = driver.Submit(MakeRequest(Pattern(9, 60), Params(60)));
  driver.Run();
  ExpectAsAlone(driver, quick);
  for (const RequestId id : lazy) {
    EXPECT_EQ(driver.results[id].num_finished, 0);
    driver.Consumed(id, 100);
  }
  driver.Run();
  for (const RequestId id : lazy) ExpectAsAlone(driver, id);
}

TEST(EngineCore, DeadlinesEndAtOnceWhereverTheRequestIs) {
  EngineOptions options = SmallOptions(kBackend);
  options.max_num_seqs = 1;
  CoreDriver driver(options, kBackend);
  EngineRequest running = MakeRequest(Pattern(1, 20), Params(100));
  running.deadline_us = driver.clock.NowUs() + 5'000;
  EngineRequest waiting = MakeRequest(Pattern(2, 20), Params(100));
  waiting.deadline_us = driver.clock.NowUs() + 3'000;
  const RequestId a = driver.Submit(std::move(running));
  const RequestId b = driver.Submit(std::move(waiting));
  driver.Step();
  EXPECT_EQ(driver.core->next_wakeup_us(), driver.requests[b].deadline_us);
  driver.Run();
  for (const RequestId id : {a, b}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(driver.results[id].finished.status));
    EXPECT_EQ(driver.results[id].finished.total_us / 1000, id == a ? 5 : 3);
  }
  EXPECT_EQ(driver.core->stats().tickets_open, 0);
  EXPECT_EQ(driver.core->next_wakeup_us(), 0);
}

TEST(EngineCore, HigherPriorityGoesFirst) {
  EngineOptions options = SmallOptions(kBackend);
  options.max_num_seqs = 2;
  CoreDriver driver(options, kBackend);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    EngineRequest request = MakeRequest(Pattern(i, 20), Params(20));
    request.priority = i == 3 ? 1 : 0;
    ids.push_back(driver.Submit(std::move(request)));
    driver.Step();
  }
  // The urgent one took the place of the second; the first is the oldest and stays.
  driver.Step();
  EXPECT_EQ(driver.results[ids[3]].num_started, 1);
  EXPECT_EQ(driver.core->stats().preemptions, 1);
  driver.Run();
  for (const RequestId id : ids) ExpectAsAlone(driver, id);
  EXPECT_LT(driver.results[ids[3]].finished.total_us, driver.results[ids[2]].finished.total_us);
  EXPECT_LT(driver.results[ids[0]].finished.total_us, driver.results[ids[1]].finished.total_us);
}

TEST(EngineCore, PrefillChunksShrinkWhenStepsTakeLong) {
  FakeBackend::Options backend = kBackend;
  backend.seconds_per_row = 1e-3;
  EngineOptions options = SmallOptions(backend);
  options.max_step_us = 64'000;
  CoreDriver driver(options, backend);
  const RequestId id = driver.Submit(MakeRequest(Pattern(1, 900), Params(4)));
  std::vector<int32_t> rows;
  while (driver.Launch()) {
    rows.push_back(driver.plan().num_rows());
    driver.Complete();
  }
  ExpectAsAlone(driver, id);
  EXPECT_EQ(rows[0], 256);
  for (size_t i = 1; i + 4 < rows.size(); ++i) EXPECT_LE(rows[i], 64);
}

TEST(EngineCore, NoStoreAndSkipDoWhatTheySay) {
  CoreDriver driver(SmallOptions(kBackend), kBackend);
  const auto ask = [&](bool read, bool store) {
    EngineRequest request = MakeRequest(Pattern(1, 64), Params(4));
    request.read_prefix_cache = read;
    request.store_prefix = store;
    return driver.Generate(std::move(request)).started.cached_tokens;
  };
  EXPECT_EQ(ask(true, false), 0);
  EXPECT_EQ(driver.core->stats().blocks_cached, 0);
  EXPECT_EQ(ask(true, true), 0);
  EXPECT_EQ(ask(false, true), 0);
  EXPECT_EQ(ask(true, false), 48);
}

TEST(EngineCore, CacheablePrefixOutlivesOthersUntilItsTtl) {
  FakeBackend::Options backend = kBackend;
  backend.num_blocks = 16;
  CoreDriver driver(SmallOptions(backend), backend);
  EngineRequest request = MakeRequest(Pattern(1, 70), Params(2));
  request.cacheable_tokens = 64;
  request.cacheable_ttl_us = 10'000'000;
  driver.Generate(request);
  EXPECT_EQ(driver.core->stats().blocks_pinned, 4);
  const auto flood = [&] {
    for (int i = 10; i < 20; ++i) driver.Generate(MakeRequest(Pattern(i, 150), Params(2)));
  };
  flood();
  EXPECT_EQ(driver.Generate(request).started.cached_tokens, 64);
  driver.clock.Advance(20'000'000);
  flood();
  EXPECT_EQ(driver.core->stats().blocks_pinned, 0);
  EXPECT_EQ(driver.Generate(request).started.cached_tokens, 0);
}

TEST(EngineCore, CancelFreesWithinOneStepAThousandTimes) {
  EngineOptions options = SmallOptions(kBackend);
  options.max_steps_in_flight = 2;
  options.max_num_batched_tokens = 32;
  CoreDriver driver(options, kBackend);
  for (int i = 0; i < 1000; ++i) {
    auto params = Params(50);
    params->n = 1 + i % 3;
    const RequestId id = driver.Submit(MakeRequest(Pattern(i % 60, 1 + i % 90), params));
    for (int step = 0; step < i % 8; ++step) driver.Step();
    driver.Launch();
    driver.Cancel(id, absl::CancelledError("gone"));
    while (driver.core->num_steps_in_flight() > 0) driver.Complete();
    const EngineStats stats = driver.core->stats();
    ASSERT_EQ(stats.tickets_open, 0);
    ASSERT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
    ASSERT_TRUE(driver.core->CheckInvariants().ok());
  }
  EXPECT_EQ(driver.core->stats().requests_cancelled, 1000);
}

TEST(EngineCore, CancelAllEndsEveryRequestOnce) {
  CoreDriver driver(SmallOptions(kBackend), kBackend);
  for (int i = 0; i < 50; ++i) driver.Submit(MakeRequest(Pattern(i, 30), Params(30)));
  driver.Step();
  driver.Launch();
  EngineOutputs out;
  driver.core->CancelAll(driver.clock.NowUs(), absl::UnavailableError("stopping"), &out);
  EXPECT_EQ(out.finished.size(), 50u);
  driver.Complete();
  EXPECT_TRUE(driver.core->idle());
  EXPECT_EQ(driver.core->stats().tickets_open, 0);
}

}  // namespace
}  // namespace quire
