// Drives the core through 100,000 random events in many small worlds. After every event all
// invariants are checked; every request that ends well must have given what it gives alone.
// TEST_SEED=n replays one world; TEST_EVENTS=n runs so many events (for long runs).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/core_driver.h"
#include "worker/engine/engine_core.h"
#include "worker/engine/fake_backend.h"

namespace quire {
namespace {

using test::CoreDriver;
using test::FakeBackend;
using test::Gathered;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumEvents = 8'000;
#else
constexpr int kNumEvents = 100'000;
#endif
constexpr int kEventsPerWorld = 500;

struct Totals {
  int64_t ok = 0, cancelled = 0, deadline = 0, refused = 0, not_finite = 0;
  int64_t preemptions = 0, copies = 0, hits = 0, steps = 0, pinned = 0;
};

class World {
 public:
  World(uint64_t seed, Totals* totals) : rng_(seed), totals_(totals) {
    backend_.block_size = Chance(50) ? 16 : 4;
    backend_.num_blocks = Between(4, 40);
    backend_.num_slots = Between(2, 8);
    EngineOptions options = test::SmallOptions(backend_);
    options.max_num_seqs = Between(1, backend_.num_slots + 1);
    options.max_num_batched_tokens = Between(1, 64);
    options.max_steps_in_flight = Between(1, 2);
    options.max_queue = Chance(20) ? 3 : 1000;
    options.enable_prefix_caching = !Chance(10);
    options.max_step_us = Chance(30) ? 20 : 100'000;
    if (Chance(15)) {
      options.paged = false;
      options.max_model_len = Between(std::min(20, options.max_model_len), options.max_model_len);
    }
    if (Chance(20)) options.tokenizer = nullptr;
    plain_ = Chance(50);  // no priorities, no lack of credits: the oldest runs all the time
    driver_ = std::make_unique<CoreDriver>(options, backend_);
  }

  void Run(int num_events) {
    for (int i = 0; i < num_events; ++i) {
      Event();
      const absl::Status status = driver_->core->CheckInvariants();
      ASSERT_TRUE(status.ok()) << status << " after event " << i;
      if (testing::Test::HasFailure()) return;
    }
    for (const auto& [id, request] : driver_->requests) driver_->Consumed(id, 1000);
    driver_->Run();
    CheckEnd();
  }

 private:
  int32_t Between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng_);
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }

  void Event() {
    const int kind = Between(1, 100);
    if (kind <= 14) {
      Submit();
    } else if (kind <= 17) {
      if (const RequestId id = SomeLive(); id != 0) {
        driver_->Cancel(id, absl::CancelledError("random"));
      }
    } else if (kind <= 25) {
      if (const RequestId id = SomeLive(); id != 0) driver_->Consumed(id, Between(0, 20));
    } else if (kind <= 60) {
      if (driver_->Launch()) CheckProgress();
    } else if (kind <= 95) {
      driver_->Complete();
    } else {
      driver_->clock.Advance(Between(1, 20'000));
    }
    driver_->clock.Advance(10);
  }

  RequestId SomeLive() {
    std::vector<RequestId> live;
    for (const auto& [id, g] : driver_->results) {
      if (g.num_finished == 0) live.push_back(id);
    }
    return live.empty() ? 0 : live[Between(0, static_cast<int32_t>(live.size()) - 1)];
  }

  void Submit() {
    auto params = std::make_shared<SamplingParams>();
    params->max_tokens = Chance(5) ? 0 : Between(1, 50);
    params->seed = Between(0, 3);
    params->ignore_eos = Chance(60);
    if (Chance(20)) params->stop_token_ids = {Between(0, 61), Between(0, 61)};
    if (Chance(20)) params->stop = {"ab", "e", "<end>", "\n\n", "the"};
    if (Chance(20)) params->min_tokens = Between(0, params->max_tokens);
    if (Chance(20)) params->num_logprobs = Between(0, 3);
    if (Chance(15)) params->num_prompt_logprobs = Between(0, 2);
    if (Chance(20)) params->n = Between(2, 4);

    EngineRequest request;
    request.prompt = test::Pattern(Between(0, 2), Between(1, 70));  // prefixes in common
    for (int32_t i = Between(0, 10); i > 0; --i) request.prompt.push_back(Between(0, 59));
    if (Chance(2)) request.prompt[request.prompt.size() / 2] = test::kNanToken;
    request.sampling = params;
    request.root.bytes[0] = static_cast<uint8_t>(Between(0, 1));
    request.read_prefix_cache = !Chance(10);
    request.store_prefix = !Chance(10);
    if (Chance(20)) {
      request.cacheable_tokens = Between(0, 80);
      request.cacheable_ttl_us = Between(1, 50'000);
    }
    if (Chance(15)) request.deadline_us = driver_->clock.NowUs() + Between(0, 30'000);
    if (!plain_) {
      request.priority = Between(-1, 1);
      request.credit_tokens = Chance(50) ? Between(0, 10) : 4096;
    }
    if (params->n == 1 && Chance(20)) {
      const test::Simulated whole =
          test::Simulate(request, driver_->options.eos_ids, driver_->options.tokenizer, 0);
      request.resume.assign(
          whole.token_ids.begin(),
          whole.token_ids.begin() + Between(0, static_cast<int32_t>(whole.token_ids.size())));
    }
    const int32_t n = params->n;
    const RequestId id = driver_->Submit(std::move(request));
    const Gathered& g = driver_->results[id];
    if (g.num_finished == 1 && !g.finished.status.ok()) return;  // refused
    sequences_[next_sequence_] = id;
    next_sequence_ += n;
  }

  // The oldest request that has started is in the plan, or in the next but one.
  void CheckProgress() {
    if (!plain_) return;
    RequestId oldest = 0;
    for (const auto& [id, g] : driver_->results) {
      if (g.num_started == 1 && g.num_finished == 0) {
        oldest = id;
        break;
      }
    }
    if (oldest == 0 || driver_->requests[oldest].sampling->n > 1) {
      num_without_ = 0;
      return;
    }
    bool has_rows = oldest != last_oldest_;
    for (const PlanSequence& seq : driver_->plan().sequences) {
      const auto it = sequences_.find(seq.sequence_id);
      has_rows |= it != sequences_.end() && it->second == oldest;
    }
    last_oldest_ = oldest;
    num_without_ = has_rows ? 0 : num_without_ + 1;
    EXPECT_LE(num_without_, 2) << "request " << oldest << " does not get on";
  }

  void CheckEnd() {
    const EngineStats stats = driver_->core->stats();
    EXPECT_TRUE(driver_->core->idle());
    EXPECT_EQ(stats.tickets_open, 0);
    EXPECT_EQ(stats.blocks_held, 0);
    EXPECT_EQ(stats.slots_used, 0);
    EXPECT_LE(stats.prefix_hits_tokens, stats.prefix_queries_tokens);
    totals_->preemptions += stats.preemptions;
    totals_->copies += driver_->backend.num_copies();
    totals_->hits += stats.prefix_hits_tokens;
    totals_->steps += stats.steps;
    totals_->pinned += stats.blocks_pinned;
    for (const auto& [id, g] : driver_->results) {
      ASSERT_EQ(g.num_finished, 1) << "request " << id;
      const absl::Status& status = g.finished.status;
      if (status.ok()) {
        ++totals_->ok;
        test::ExpectAsAlone(*driver_, id);
        continue;
      }
      const EngineRequest& request = driver_->requests[id];
      totals_->cancelled += absl::IsCancelled(status);
      totals_->deadline += absl::IsDeadlineExceeded(status);
      totals_->refused += absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status);
      totals_->not_finite += absl::IsInternal(status);
      EXPECT_FALSE(absl::IsUnavailable(status));
      for (int32_t i = 0; i < request.sampling->n; ++i) {
        const test::Simulated want =
            test::Simulate(request, driver_->options.eos_ids, driver_->options.tokenizer, i);
        EXPECT_EQ(absl::IsInternal(status) && !want.not_finite, false) << status;
        const std::vector<int32_t>& got = g.choices[i].token_ids;
        ASSERT_LE(got.size(), want.token_ids.size());
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.token_ids.begin()));
      }
    }
  }

  std::mt19937_64 rng_;
  Totals* const totals_;
  FakeBackend::Options backend_;
  bool plain_ = false;
  std::unique_ptr<CoreDriver> driver_;
  std::map<int64_t, RequestId> sequences_;  // first choices
  int64_t next_sequence_ = 1;
  RequestId last_oldest_ = 0;
  int num_without_ = 0;
};

TEST(EngineCoreRandom, EveryRequestGivesWhatItGivesAlone) {
  const char* const given = std::getenv("TEST_SEED");
  const uint64_t base = given != nullptr ? std::strtoull(given, nullptr, 10) : 20260901;
  Totals totals;
  const char* const events = std::getenv("TEST_EVENTS");
  const int64_t num_events = events != nullptr ? std::atoll(events) : kNumEvents;
  const int64_t num_worlds =
      given != nullptr && events == nullptr ? 1 : num_events / kEventsPerWorld;
  for (int64_t i = 0; i < num_worlds; ++i) {
    const uint64_t seed = base + i;
    SCOPED_TRACE(absl::StrCat("TEST_SEED=", seed));
    World world(seed, &totals);
    world.Run(kEventsPerWorld);
    ASSERT_FALSE(HasFailure()) << "TEST_SEED=" << seed << " replays it";
  }
  std::printf(
      "seed %llu: %lld ok, %lld cancelled, %lld past deadline, %lld refused, %lld not finite; "
      "%lld steps, %lld preemptions, %lld copies, %lld tokens hit\n",
      static_cast<unsigned long long>(base), static_cast<long long>(totals.ok),
      static_cast<long long>(totals.cancelled), static_cast<long long>(totals.deadline),
      static_cast<long long>(totals.refused), static_cast<long long>(totals.not_finite),
      static_cast<long long>(totals.steps), static_cast<long long>(totals.preemptions),
      static_cast<long long>(totals.copies), static_cast<long long>(totals.hits));
  if (given != nullptr) return;
  // The run has to have met what it is for.
  EXPECT_GT(totals.ok, 100);
  EXPECT_GT(totals.preemptions, 100);
  EXPECT_GT(totals.copies, 20);
  EXPECT_GT(totals.hits, 1000);
  EXPECT_GT(totals.deadline, 10);
  EXPECT_GT(totals.not_finite, 5);
}

}  // namespace
}  // namespace quire
