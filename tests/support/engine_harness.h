// EngineHarness: a model on the CPU backend under an EngineCore, driven by hand: no threads but the
// kernels', virtual time, everything synchronous. For tests of what a request gives.
//
//   auto model = test::LoadTestModel(dir);                       // dies with the reason if it
//   cannot test::EngineHarness engine(model, {.kv_dtype = KvDtype::kF32}); test::HarnessResult r =
//   engine.RunOne({.prompt = {1, 2, 3}, .sampling = test::Greedy(8)});
//   EXPECT_THAT(r.choices[0].tokens, ElementsAre(...));
//
// Several requests at once: Run({...}), or Submit() each, Step() while looking around, Cancel(),
// then RunUntilIdle() and result(id). The core's invariants are checked after every step.
#ifndef QUIRE_TESTS_SUPPORT_ENGINE_HARNESS_H_
#define QUIRE_TESTS_SUPPORT_ENGINE_HARNESS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/isa.h"
#include "kernels/kv_layout/kv_layout.h"
#include "worker/backend/backend.h"
#include "worker/engine/engine_core.h"
#include "worker/model/model.h"

namespace quire::test {

// Loads for the harness. The first form ends the process with the reason if the model does not
// load.
std::shared_ptr<const Model> LoadTestModel(const std::string& path,
                                           const std::string& weights_dtype = "auto",
                                           Isa isa = DetectIsa());
absl::StatusOr<std::shared_ptr<const Model>> TryLoadTestModel(
    const std::string& path, const std::string& weights_dtype = "auto", Isa isa = DetectIsa());

struct HarnessOptions {
  KvDtype kv_dtype = KvDtype::kBf16;
  int32_t block_size = 16;
  int32_t num_blocks = 512;
  int64_t kv_memory_bytes = 0;  // 0 = what num_blocks needs; else it decides
  int32_t num_threads = 1;
  int32_t max_num_batched_tokens = 256;
  int32_t max_num_seqs = 64;
  int32_t max_steps_in_flight = 1;
  int32_t max_model_len = 0;  // 0 = the model's, or what the pool holds if that is less
  bool enable_prefix_caching = true;
  bool paged = true;
  std::string tenant_salt = {};  // of requests that name none
  // Keep every row of logits that a sample or a score was taken from: logits_at().
  bool capture_logits = false;
};

struct HarnessRequest {
  std::vector<int32_t> prompt = {};
  SamplingParams sampling = {};
  std::vector<int32_t> resume = {};
  int32_t priority = 0;
  bool read_prefix_cache = true;
  bool store_prefix = true;
  std::string tenant_salt = {};
  int32_t cacheable_tokens = 0;
  int64_t cacheable_ttl_us = 0;
  TimeUs deadline_us = 0;
  int32_t credit_tokens = 1 << 30;
};

struct HarnessResult {
  struct Choice {
    std::vector<int32_t> tokens;
    std::string text;
    std::vector<std::string> deltas;  // `text` as it came
    std::vector<SampledToken> logprobs;
    FinishReason reason = FinishReason::kError;
    std::string stop_matched;
  };
  absl::Status status;
  std::vector<Choice> choices;
  std::vector<SampledToken> prompt_logprobs;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t completion_tokens = 0;
  int num_started = 0, num_finished = 0;  // at the end 1 and 1 (or 0 and 1: refused)
  bool finished() const { return num_finished > 0; }
};

// Greedy for exactly `max_tokens` tokens: end tokens do not end it.
SamplingParams Greedy(int32_t max_tokens, int32_t num_logprobs = -1);
// Scores the prompt and samples one token.
SamplingParams ScorePrompt(int32_t num_top = 0);

// Everything in the result that must be the same however it was computed, with the bits of every
// float, as text that shows the first difference. Not the cached tokens.
std::string Fingerprint(const HarnessResult& result);

class EngineHarness {
 public:
  EngineHarness(std::shared_ptr<const Model> model, HarnessOptions options = {});
  ~EngineHarness();

  // Submits all at once, runs until all have ended. In the order of the requests.
  std::vector<HarnessResult> Run(const std::vector<HarnessRequest>& requests);
  HarnessResult RunOne(const HarnessRequest& request);

  RequestId Submit(const HarnessRequest& request);
  void Cancel(RequestId id, absl::Status status = absl::CancelledError("cancelled by the test"));
  // Launches what may be in flight, then takes the oldest result. False if there was nothing to do.
  bool Step();
  void RunUntilIdle();
  // Without the results of steps that are still in flight.
  const HarnessResult& result(RequestId id) const { return results_.at(id); }

  // The logits of one position of one of the sequences, newest first; needs capture_logits. With
  // `sequence` < 0 there must have been one sequence only since the last Run.
  const std::vector<float>& logits_at(int32_t position, int64_t sequence = -1) const;
  void ClearLogits() { logits_.clear(); }

  // Called with each plan before it is launched; for looking at chunks and copies.
  std::function<void(const StepPlan&)> on_plan;

  EngineCore& core() { return *core_; }
  Backend& backend() { return *backend_; }
  const Model& model() const { return *model_; }
  EngineStats stats() const { return core_->stats(); }
  TimeUs now_us() const { return now_us_; }
  void AdvanceTime(TimeUs us) { now_us_ += us; }
  int64_t num_steps() const { return num_steps_; }
  BlockKey Root(const std::string& tenant_salt) const;

 private:
  void Take(EngineOutputs* outputs);

  const std::shared_ptr<const Model> model_;
  const HarnessOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<EngineCore> core_;
  std::deque<std::unique_ptr<StepPlan>> in_flight_;  // launched, oldest first
  std::map<RequestId, HarnessResult> results_;
  std::map<std::pair<int64_t, int32_t>, std::vector<float>> logits_;  // (sequence, position)
  TimeUs now_us_ = 1'000'000;
  RequestId next_id_ = 1;
  int64_t num_steps_ = 0;
};

}  // namespace quire::test

#endif  // QUIRE_TESTS_SUPPORT_ENGINE_HARNESS_H_
