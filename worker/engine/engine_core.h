// EngineCore: the scheduler, the block manager and the sequences of one worker, as a deterministic
// machine. It takes messages (submit, cancel, consumed), the time and step results; it gives plans
// and outputs. It has no threads, no clock, no random numbers of its own and does no I/O.
//
// Owner: the engine thread. No locks; a call from any other thread is a bug.
//
// Driving it (plans may run one step ahead):
//
//   core.Submit(...); core.Cancel(...);
//   if (core.MakePlan(now, &plan)) backend.Launch(plan);        // up to max_steps_in_flight
//   core.Complete(now, backend.Finish(), &outputs);             // oldest first
//
// Invariants (CheckInvariants): see MODULE_NOTES.md in this folder.
#ifndef QUIRE_WORKER_ENGINE_ENGINE_CORE_H_
#define QUIRE_WORKER_ENGINE_ENGINE_CORE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/text/tokenizer.h"
#include "worker/engine/plan.h"
#include "worker/engine/request.h"

namespace quire {

struct EngineOptions {
  int32_t block_size = 16;
  int32_t num_blocks = 0;             // of the device tier
  int32_t num_slots = 256;            // sampler slots = choices that run at once
  int32_t max_num_seqs = 256;         // choices in the running set
  int32_t max_num_batched_tokens = 256;  // rows of a step
  int64_t max_step_us = 100'000;      // target: prefill chunks shrink when steps take longer
  int32_t max_model_len = 0;          // positions of a sequence
  int32_t max_queue = 4096;           // waiting requests; more are refused
  int32_t max_steps_in_flight = 1;    // 1 or 2
  bool enable_prefix_caching = true;
  bool paged = true;  // false: each sequence reserves max_model_len positions, contiguous
  std::vector<int32_t> eos_ids;
  const Tokenizer* tokenizer = nullptr;  // may be null: then no text and no stop strings
};

class EngineCore {
 public:
  explicit EngineCore(const EngineOptions& options);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;

  // Queues the request. Refusals come as a `finished` in `outputs` with INVALID_ARGUMENT (longer
  // than max_model_len or than the pool can ever hold) or RESOURCE_EXHAUSTED (queue full).
  void Submit(TimeUs now, EngineRequest request, EngineOutputs* outputs);

  // Ends the request with `status` (CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE). Its blocks are free
  // as soon as no step in flight refers to them. Unknown ids are ignored.
  void Cancel(TimeUs now, RequestId id, absl::Status status, EngineOutputs* outputs);

  // The client took `num_tokens` more tokens: the request may send as many more.
  void Consumed(RequestId id, int32_t num_tokens);

  // Makes the next plan. False if there is nothing to run or max_steps_in_flight are out. Expired
  // deadlines and TTLs are handled here, so outputs may come too.
  bool MakePlan(TimeUs now, StepPlan* plan, EngineOutputs* outputs);

  // Takes the result of the oldest plan in flight: commits blocks, gives text, ends choices.
  void Complete(TimeUs now, const StepResult& result, EngineOutputs* outputs);

  // Every request that is queued or running ends with `status`.
  void CancelAll(TimeUs now, const absl::Status& status, EngineOutputs* outputs);

  int num_steps_in_flight() const;
  bool idle() const;  // nothing queued, running or in flight
  // When MakePlan should be called even if no message comes (deadlines, TTLs); 0 = never.
  TimeUs next_wakeup_us() const;
  EngineStats stats() const;

  // OK, or INTERNAL naming the first broken invariant. For tests and idle time.
  absl::Status CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_ENGINE_CORE_H_
