// EngineCore::Impl: the engine core's state and its parts: engine_core.cc (messages and results),
// scheduler.cc (plans), scheduler_holds.cc (blocks and slots), engine_core_check.cc (statistics and
// invariants). Private to this folder.
#ifndef QUIRE_WORKER_ENGINE_ENGINE_CORE_IMPL_H_
#define QUIRE_WORKER_ENGINE_ENGINE_CORE_IMPL_H_

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker/engine/block_manager.h"
#include "worker/engine/engine_core.h"
#include "worker/engine/sequence.h"

namespace quire {

class EngineCore::Impl {
 public:
  explicit Impl(const EngineOptions& options);

  void Submit(TimeUs now, EngineRequest in, EngineOutputs* out);
  void Cancel(TimeUs now, RequestId id, const absl::Status& status, EngineOutputs* out);
  void Consumed(RequestId id, int32_t num_tokens);
  bool MakePlan(TimeUs now, StepPlan* plan, EngineOutputs* out);
  void Complete(TimeUs now, const StepResult& result, EngineOutputs* out);
  void CancelAll(TimeUs now, const absl::Status& status, EngineOutputs* out);
  int num_steps_in_flight() const { return static_cast<int>(flights_.size()); }
  bool idle() const { return requests_.empty() && flights_.empty(); }
  TimeUs next_wakeup_us() const;
  EngineStats stats() const;
  absl::Status CheckInvariants() const;

 private:
  // A step between plan and result.
  struct Flight {
    struct Rows {
      Sequence* sequence;
      uint32_t life;
      int32_t end;  // position after its last row
    };
    struct Score {
      Sequence* sequence;
      int32_t position;  // of the token that is scored
    };
    int64_t step_id = 0;
    std::vector<Rows> rows;
    std::vector<Sequence*> samples;  // as in the plan
    std::vector<Score> scores;       // as in the plan
    std::vector<int32_t> deferred;   // blocks whose tickets come back with the result
    bool prefill_was_limited = false;
    int32_t num_prefill_rows = 0;
    void Clear();
  };
  enum class Admission { kAdmitted, kSkipped, kBlocked };

  // engine_core.cc
  absl::Status CheckRequest(const Request& r) const;
  void PrepareStops(Request* r) const;
  // Adds a known output token to the sequence. If the choice ends with it, `finish` is filled in
  // and true given. Text that became certain is added to `text`.
  bool AddOutput(Sequence* s, int32_t token, std::string* text, ChoiceFinish* finish) const;
  void TakeSample(TimeUs now, Sequence* s, const SampledToken& sample, EngineOutputs* out);
  void TakeScore(const Flight::Score& score, const SampledToken& sample, EngineOutputs* out);
  ChoiceDelta& DeltaOf(Sequence* s, EngineOutputs* out);
  void CommitBlocks(TimeUs now, Sequence* s);
  void AdaptPrefillLimit(const Flight& flight, const StepResult& result);
  void EndChoice(TimeUs now, Sequence* s, ChoiceFinish finish, EngineOutputs* out);
  void EndRequest(TimeUs now, Request* r, const absl::Status& status, EngineOutputs* out);
  void FinishRequest(TimeUs now, Request* r, const absl::Status& status, EngineOutputs* out);
  void Retire(Sequence* s);  // out of all lists; blocks and slot given back
  void SweepEnded();

  // scheduler.cc, scheduler_holds.cc
  void AdmitUrgent();
  void ScheduleProtected();
  void ScheduleInOrder();
  void SchedulePrefill(Sequence* s, int32_t most_rows);
  void SchedulePrefills();
  bool CanRun(const Sequence& s) const;
  bool ScheduleRows(Sequence* s, int32_t num_rows);
  void AddSample(Sequence* s, int32_t row);
  void Fork(Sequence* first, int32_t row);
  Admission Admit(Sequence* s);
  bool MustAwait(Sequence* s, int32_t num_hits);
  void MatchPrefix(Sequence* s);  // into hits_
  bool ReserveMemory(Sequence* s);
  bool ReserveSlots(Sequence* s);
  bool EnsureBlocks(Sequence* s, int32_t end);
  Sequence* OldestRunning() const;
  // True for a sequence that was preempted when it was not the oldest and has become that since.
  bool IsSenior(const Sequence& s) const {
    return s.request->started && (protected_ == nullptr || IsOlder(s, *protected_));
  }
  // Whom `s` may take blocks (or a place) from; null if nobody.
  Sequence* PickVictim(const Sequence& s, bool admission) const;
  void Preempt(Sequence* s);
  void GiveUpBlocks(Sequence* s);
  void GiveUpSlot(Sequence* s);
  void UpdateKeys(Sequence* s) const;  // of all full blocks whose tokens are known
  void RegisterComputing(Sequence* s);
  void UnregisterComputing(Sequence* s);
  const BlockKey& ParentKey(const Sequence& s, int32_t block) const {
    return block == 0 ? s.request->in.root : s.keys[block - 1];
  }
  std::span<const int32_t> BlockTokens(const Sequence& s, int32_t block) const {
    return std::span<const int32_t>(s.tokens).subspan(
        static_cast<size_t>(block) * options_.block_size, options_.block_size);
  }
  int32_t BlocksFor(int32_t num_positions) const {
    return (num_positions + options_.block_size - 1) / options_.block_size;
  }
  // Places in the running set that `s` takes: before the fork it stands for all its choices.
  static int32_t Weight(const Sequence& s) {
    return s.request->forked ? 1 : s.request->num_choices();
  }
  void ListRunning(Sequence* s);
  void ListWaiting(Sequence* s);
  void Unlist(Sequence* s);

  // Constant.
  const EngineOptions options_;
  const bool caching_;

  BlockManager blocks_;
  std::map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Request>> ended_;  // steps in flight still name their sequences
  std::vector<Sequence*> waiting_, running_;     // in the order of GoesBefore
  int32_t num_running_ = 0;                      // choices: the sum of Weight over running_
  std::set<std::pair<TimeUs, RequestId>> deadlines_;
  std::deque<std::unique_ptr<Flight>> flights_;  // oldest first
  std::vector<std::unique_ptr<Flight>> spare_flights_;
  std::vector<int32_t> free_slots_, detach_;  // detach_: for the next plan
  // Blocks that a running sequence is computing and will commit.
  absl::flat_hash_map<BlockKey, Sequence*, BlockKeyHash> computing_;
  int64_t next_step_ = 1, next_sequence_ = 1;
  int64_t num_plan_calls_ = 0;
  int32_t prefill_limit_;  // rows of prefill in a step, from max_step_us
  EngineStats counters_;

  // While a plan is being made.
  StepPlan* plan_ = nullptr;
  EngineOutputs* out_ = nullptr;
  std::unique_ptr<Flight> building_;
  TimeUs now_ = 0;
  int32_t rows_left_ = 0, prefill_left_ = 0;
  Sequence* protected_ = nullptr;  // the oldest running sequence: never preempted
  bool await_ = true;
  std::vector<Sequence*> scratch_running_, scratch_waiting_;
  std::vector<int32_t> hits_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_ENGINE_CORE_IMPL_H_
