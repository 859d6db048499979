#include "worker/engine/engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/engine/core_driver.h"
#include "worker/engine/fake_backend.h"

namespace quire {
namespace {

using test::FakeBackend;
using test::MakeRequest;
using test::Params;
using test::Pattern;

// Gathers what the sink gets and lets a test wait for it.
class Collector {
 public:
  Engine::Sink sink() {
    return [this](EngineOutputs outputs) { Take(std::move(outputs)); };
  }

  // The end of the request; waits for it.
  RequestFinished WaitFinished(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_.contains(id); });
    return finished_[id];
  }
  void WaitTokens(RequestId id, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_[id].size() >= count || finished_.contains(id); });
  }
  std::vector<int32_t> tokens(RequestId id) {
    std::lock_guard lock(mutex_);
    return tokens_[id];
  }
  int num_finished() {
    std::lock_guard lock(mutex_);
    return num_finished_;
  }

 private:
  void Take(EngineOutputs outputs) {
    std::lock_guard lock(mutex_);
    for (const ChoiceDelta& delta : outputs.deltas) {
      std::vector<int32_t>& tokens = tokens_[delta.request_id];
      tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
    }
    for (RequestFinished& finished : outputs.finished) {
      EXPECT_FALSE(finished_.contains(finished.request_id));
      ++num_finished_;
      finished_[finished.request_id] = std::move(finished);
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, RequestFinished> finished_;
  std::map<RequestId, std::vector<int32_t>> tokens_;
  int num_finished_ = 0;
};

struct Fixture {
  explicit Fixture(int depth = 1, FakeBackend::Options backend_options = {.num_blocks = 256})
      : backend(backend_options) {
    options = test::SmallOptions(backend_options);
    options.max_steps_in_flight = depth;
    engine = std::make_unique<Engine>(options, &backend, &clock, collector.sink());
  }
  EngineRequest Ask(RequestId id, int prompt, int tokens) {
    EngineRequest request =
        MakeRequest(Pattern(static_cast<int32_t>(id % 60), prompt), Params(tokens));
    request.id = id;
    return request;
  }

  SteadyClock clock;
  FakeBackend backend;
  EngineOptions options;
  Collector collector;
  std::unique_ptr<Engine> engine;
};

TEST(Engine, ServesRequestsFromManyThreads) {
  for (const int depth : {1, 2}) {
    Fixture f(depth);
    std::vector<std::thread> clients;
    for (int t = 0; t < 4; ++t) {
      clients.emplace_back([&f, t] {
        for (int i = 0; i < 10; ++i) {
          const RequestId id = 1 + t * 100 + i;
          EXPECT_TRUE(f.engine->Submit(f.Ask(id, 5 + i * 7, 12)).ok());
          EXPECT_TRUE(f.collector.WaitFinished(id).status.ok());
          EXPECT_GE(f.engine->stats().blocks_total, 1);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < 10; ++i) {
        const EngineRequest request = f.Ask(1 + t * 100 + i, 5 + i * 7, 12);
        EXPECT_EQ(f.collector.tokens(request.id),
                  test::Simulate(request, f.options.eos_ids, f.options.tokenizer, 0).token_ids);
      }
    }
    EXPECT_TRUE(f.engine->health().ok());
    f.engine->Stop();
    EXPECT_EQ(f.engine->stats().tickets_open, 0);
    EXPECT_EQ(f.engine->stats().requests_ok, 40);
  }
}

TEST(Engine, CancelsLeakNothing) {
  for (const int depth : {1, 2}) {
    Fixture f(depth);
    for (RequestId id = 1; id <= 1000; ++id) {
      ASSERT_TRUE(f.engine->Submit(f.Ask(id, 20 + id % 50, 1000)).ok());
      f.collector.WaitTokens(id, id % 7);
      f.engine->Cancel(id, absl::CancelledError("the client went away"));
      EXPECT_TRUE(absl::IsCancelled(f.collector.WaitFinished(id).status));
    }
    f.engine->Stop();
    const EngineStats stats = f.engine->stats();
    EXPECT_EQ(stats.tickets_open, 0);
    EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
    EXPECT_EQ(stats.requests_cancelled, 1000);
    EXPECT_EQ(f.collector.num_finished(), 1000);
  }
}

TEST(Engine, StopEndsEverything) {
  Fixture f(2);
  for (RequestId id = 1; id <= 50; ++id) {
    ASSERT_TRUE(f.engine->Submit(f.Ask(id, 30, 3000)).ok());
  }
  f.collector.WaitTokens(1, 1);
  f.engine->Stop();
  f.engine->Stop();
  EXPECT_EQ(f.collector.num_finished(), 50);
  EXPECT_EQ(f.engine->stats().tickets_open, 0);
  EXPECT_TRUE(absl::IsUnavailable(f.engine->Submit(f.Ask(51, 3, 3))));
}

TEST(Engine, DrainRefusesNewRequestsAndFinishesOld) {
  Fixture f;
  ASSERT_TRUE(f.engine->Submit(f.Ask(1, 30, 500)).ok());
  f.engine->Drain();
  EXPECT_TRUE(absl::IsUnavailable(f.engine->Submit(f.Ask(2, 3, 3))));
  EXPECT_TRUE(f.collector.WaitFinished(1).status.ok());
  while (!f.engine->drained()) std::this_thread::yield();
  EXPECT_EQ(f.engine->stalled_us(), 0);
}

TEST(Engine, BackendErrorEndsAllWithUnavailable) {
  Fixture f;
  f.backend.FailNextLaunch();  // before anything is submitted: no race with the engine thread
  for (RequestId id = 1; id <= 3; ++id) {
    const absl::Status status = f.engine->Submit(f.Ask(id, 30, 500));
    if (status.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(f.collector.WaitFinished(id).status));
    } else {
      EXPECT_TRUE(absl::IsUnavailable(status));
    }
  }
  EXPECT_TRUE(absl::IsUnavailable(f.engine->health()));
  EXPECT_TRUE(absl::IsUnavailable(f.engine->Submit(f.Ask(9, 3, 3))));
}

TEST(Engine, DeadlineEndsARequestThatNobodyReads) {
  Fixture f;
  EngineRequest request = f.Ask(1, 30, 3000);
  request.credit_tokens = 5;
  request.deadline_us = f.clock.NowUs() + 20'000;
  ASSERT_TRUE(f.engine->Submit(std::move(request)).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(f.collector.WaitFinished(1).status));
  EXPECT_LE(f.collector.tokens(1).size(), 5u);
  f.engine->Stop();
  EXPECT_EQ(f.engine->stats().tickets_open, 0);
}

TEST(Engine, CreditsLetARequestGoOn) {
  Fixture f(2);
  EngineRequest request = f.Ask(1, 30, 40);
  request.credit_tokens = 5;
  ASSERT_TRUE(f.engine->Submit(std::move(request)).ok());
  f.collector.WaitTokens(1, 5);
  ASSERT_TRUE(f.engine->Submit(f.Ask(2, 30, 40)).ok());  // others are unharmed
  EXPECT_TRUE(f.collector.WaitFinished(2).status.ok());
  EXPECT_EQ(f.collector.tokens(1).size(), 5u);
  f.engine->Consumed(1, 100);
  EXPECT_TRUE(f.collector.WaitFinished(1).status.ok());
}

}  // namespace
}  // namespace quire
