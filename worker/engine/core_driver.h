// CoreDriver: runs an EngineCore against a FakeBackend under a fake clock and gathers what each
// request gave. For tests.
#ifndef QUIRE_WORKER_ENGINE_CORE_DRIVER_H_
#define QUIRE_WORKER_ENGINE_CORE_DRIVER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "worker/engine/engine_core.h"
#include "worker/engine/fake_backend.h"

namespace quire::test {

// What one request gave so far.
struct Gathered {
  struct Choice {
    std::vector<int32_t> token_ids;
    std::string text;
    std::vector<SampledToken> logprobs;
    std::vector<SampledToken> prompt_logprobs;
  };
  int num_started = 0, num_finished = 0;
  RequestStarted started;
  RequestFinished finished;
  std::vector<Choice> choices;
  bool in_order = true;  // started, deltas, finished
};

class CoreDriver {
 public:
  CoreDriver(const EngineOptions& options, const FakeBackend::Options& backend);

  RequestId Submit(EngineRequest request);  // fills in id and arrival
  void Cancel(RequestId id, absl::Status status);
  void Consumed(RequestId id, int32_t num_tokens) { core->Consumed(id, num_tokens); }
  bool Launch();    // makes and launches one plan, if there is one
  bool Complete();  // finishes the oldest step, if there is one
  bool Step();      // Launch up to the limit, then Complete. False if nothing happened.
  // Steps until nothing is left to do. Every broken invariant is a test failure.
  void Run(int max_steps = 100000);
  // One request alone, to its end.
  const Gathered& Generate(EngineRequest request);

  const StepPlan& plan() const { return plans[num_plans % 2]; }  // the last one launched

  EngineOptions options;
  FakeClock clock;
  FakeBackend backend;
  std::unique_ptr<EngineCore> core;
  std::map<RequestId, Gathered> results;
  std::map<RequestId, EngineRequest> requests;
  StepPlan plans[2];
  int num_plans = 0;

 private:
  void Gather(EngineOutputs outputs);
  RequestId next_id_ = 1;
};

// Small options that fit each other.
EngineOptions SmallOptions(const FakeBackend::Options& backend);

// P(a, n) = [(a + 31 * i) % 60 for i < n], and parameters for a greedy run.
std::vector<int32_t> Pattern(int32_t a, int32_t n);
std::shared_ptr<SamplingParams> Params(int32_t max_tokens);
EngineRequest MakeRequest(std::vector<int32_t> prompt, std::shared_ptr<SamplingParams> params);

// Compares what a request gave with Simulate(); a test failure names what differs.
void ExpectAsAlone(const CoreDriver& driver, RequestId id);

}  // namespace quire::test

#endif  // QUIRE_WORKER_ENGINE_CORE_DRIVER_H_
