// The scheduler: which rows run in the next step, and whose blocks they use.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/engine/engine_core_impl.h"

namespace quire {
namespace {

// A waiting request stops waiting for another one's blocks when that one got nowhere for so many
// plans (its client takes nothing, it lacks blocks, others go first).
constexpr int64_t kMaxPlansAwaited = 64;

void Clear(StepPlan* plan) {  // keeps the memory
  plan->detach_slots.clear();
  plan->attach_slots.clear();
  plan->copies.clear();
  plan->tokens.clear();
  plan->sequences.clear();
  plan->block_ids.clear();
  plan->samples.clear();
  plan->scores.clear();
}

bool Before(const Sequence* a, const Sequence* b) { return GoesBefore(*a, *b); }

void Insert(std::vector<Sequence*>* list, Sequence* s) {
  list->insert(std::upper_bound(list->begin(), list->end(), s, Before), s);
}

void Remove(std::vector<Sequence*>* list, Sequence* s) {
  const auto it = std::lower_bound(list->begin(), list->end(), s, Before);
  QUIRE_CHECK(it != list->end() && *it == s);
  list->erase(it);
}

}  // namespace

void EngineCore::Impl::ListRunning(Sequence* s) {
  s->state = SequenceState::kRunning;
  Insert(&running_, s);
  num_running_ += Weight(*s);
}

void EngineCore::Impl::ListWaiting(Sequence* s) {
  s->state = SequenceState::kWaiting;
  Insert(&waiting_, s);
}

void EngineCore::Impl::Unlist(Sequence* s) {
  if (s->state == SequenceState::kRunning) {
    Remove(&running_, s);
    num_running_ -= Weight(*s);
  } else if (s->state == SequenceState::kWaiting) {
    Remove(&waiting_, s);
  }
}

bool EngineCore::Impl::MakePlan(TimeUs now, StepPlan* plan, EngineOutputs* out) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Request* r = requests_.find(deadlines_.begin()->second)->second.get();
    EndRequest(now, r,
               absl::DeadlineExceededError(absl::StrCat("deadline passed after ",
                                                        (now - r->in.arrival_us) / 1000, " ms and ",
                                                        r->num_generated, " tokens")),
               out);
  }
  SweepEnded();
  blocks_.ExpirePins(now);
  if (num_steps_in_flight() >= options_.max_steps_in_flight) return false;

  ++num_plan_calls_;
  Clear(plan);
  plan->step_id = next_step_;
  plan_ = plan;
  out_ = out;
  now_ = now;
  if (spare_flights_.empty()) spare_flights_.push_back(std::make_unique<Flight>());
  building_ = std::move(spare_flights_.back());
  spare_flights_.pop_back();
  building_->step_id = next_step_;
  rows_left_ = options_.max_num_batched_tokens;
  prefill_left_ = prefill_limit_;
  protected_ = OldestRunning();

  ScheduleDecodes();
  SchedulePrefills();
  if (plan->tokens.empty() && flights_.empty() && !waiting_.empty()) {
    // Whoever is waited for cannot run: compute it twice rather than never.
    await_ = false;
    SchedulePrefills();
    await_ = true;
  }
  if (plan->tokens.empty()) {
    QUIRE_CHECK(building_->deferred.empty() && plan->empty());
    building_->Clear();
    spare_flights_.push_back(std::move(building_));
    return false;
  }
  plan->detach_slots.swap(detach_);
  detach_.clear();
  flights_.push_back(std::move(building_));
  ++next_step_;
  return true;
}

bool EngineCore::Impl::CanRun(const Sequence& s) const {
  const Request& r = *s.request;
  if (s.state != SequenceState::kRunning || s.last_step == plan_->step_id) return false;
  if (r.max_tokens == 0) return s.num_rows_left() > 0;
  return s.num_outputs() + s.num_pending < r.max_tokens && !r.out_of_credits();
}

Sequence* EngineCore::Impl::OldestRunning() const {
  Sequence* oldest = nullptr;
  for (Sequence* s : running_) {
    if (s->request->out_of_credits()) continue;
    if (oldest == nullptr || IsOlder(*s, *oldest)) oldest = s;
  }
  return oldest;
}

void EngineCore::Impl::ScheduleDecodes() {
  scratch_running_.assign(running_.begin(), running_.end());
  if (protected_ != nullptr && protected_->num_rows_left() == 1 && CanRun(*protected_)) {
    ScheduleRows(protected_, 1);
  }
  // A row is kept for the oldest if it still prefills.
  const bool keep = protected_ != nullptr && protected_->num_rows_left() > 1 && rows_left_ > 1;
  for (Sequence* s : scratch_running_) {
    if (rows_left_ <= (keep ? 1 : 0)) return;
    if (s->num_rows_left() == 1 && CanRun(*s)) ScheduleRows(s, 1);
  }
}

void EngineCore::Impl::SchedulePrefills() {
  prefill_left_ = std::min(prefill_left_, rows_left_);
  if (prefill_left_ <= 0) return;
  scratch_running_.clear();
  for (Sequence* s : running_) {
    if (s->num_rows_left() > 1 && CanRun(*s)) scratch_running_.push_back(s);
  }
  scratch_waiting_.assign(waiting_.begin(), waiting_.end());
  const auto prefill = [this](Sequence* s, int32_t most) {
    const int32_t wanted = s->num_rows_left();
    const int32_t num_rows = std::min({wanted, prefill_left_, most});
    if (!ScheduleRows(s, num_rows)) return;
    prefill_left_ -= num_rows;
    building_->num_prefill_rows += num_rows;
    building_->prefill_was_limited |= num_rows < wanted && num_rows < rows_left_ + num_rows;
  };
  // The oldest goes on whatever else is urgent, if only by a block a step.
  if (protected_ != nullptr && protected_->num_rows_left() > 1 && CanRun(*protected_)) {
    const bool first =
        scratch_running_.front() == protected_ &&
        (scratch_waiting_.empty() || GoesBefore(*protected_, *scratch_waiting_.front()));
    prefill(protected_, first ? prefill_left_ : options_.block_size);
  }
  size_t next_running = 0, next_waiting = 0;
  bool blocked = false;
  while (prefill_left_ > 0) {
    if (blocked) next_waiting = scratch_waiting_.size();
    const bool has_running = next_running < scratch_running_.size();
    const bool has_waiting = next_waiting < scratch_waiting_.size();
    if (!has_running && !has_waiting) return;
    if (has_running && (!has_waiting || GoesBefore(*scratch_running_[next_running],
                                                   *scratch_waiting_[next_waiting]))) {
      Sequence* s = scratch_running_[next_running++];
      if (CanRun(*s)) prefill(s, prefill_left_);
      continue;
    }
    Sequence* s = scratch_waiting_[next_waiting++];
    const Admission admission = Admit(s);
    blocked = admission == Admission::kBlocked;
    if (admission == Admission::kAdmitted && CanRun(*s)) prefill(s, prefill_left_);
  }
}

// --- Admission ---

EngineCore::Impl::Admission EngineCore::Impl::Admit(Sequence* s) {
  Request* r = s->request;
  // A sample in flight still belongs to it: it cannot be computed again before that is known.
  if (s->num_flights > 0 || r->out_of_credits()) return Admission::kSkipped;
  MatchPrefix(s);
  if (MustAwait(s, static_cast<int32_t>(hits_.size()))) return Admission::kSkipped;
  while (num_running_ + Weight(*s) > options_.max_num_seqs) {
    Sequence* victim = PickVictim(*s, /*admission=*/true);
    if (victim == nullptr) return Admission::kBlocked;
    Preempt(victim);
  }
  if (!ReserveSlots(s)) return Admission::kSkipped;
  if (!ReserveMemory(s)) return Admission::kBlocked;

  if (options_.paged) {
    for (const int32_t id : hits_) blocks_.Ref(id);
    s->blocks.assign(hits_.begin(), hits_.end());
  } else {
    const int32_t first = blocks_.AllocateRun().value();
    for (int32_t i = 0; i < blocks_.run_blocks(); ++i) s->blocks.push_back(first + i);
  }
  s->num_committed = static_cast<int32_t>(hits_.size());
  s->num_planned = s->num_done = s->num_committed * options_.block_size;
  if (r->in.store_prefix && r->in.cacheable_ttl_us > 0) {
    const int32_t num_worth =
        std::min(s->num_committed, r->in.cacheable_tokens / options_.block_size);
    for (int32_t i = 0; i < num_worth; ++i) {
      blocks_.Pin(hits_[i], now_ + r->in.cacheable_ttl_us);
    }
  }
  RegisterComputing(s);
  Unlist(s);
  ListRunning(s);
  if (!r->started) {
    r->started = true;
    r->first_scheduled_us = now_;
    r->cached_tokens = s->num_planned;
    if (r->in.read_prefix_cache && caching_) {
      counters_.prefix_queries_tokens += r->num_prompt;
      counters_.prefix_hits_tokens += std::min(r->cached_tokens, r->num_prompt);
    }
    out_->started.push_back({r->in.id, r->num_prompt, r->cached_tokens});
  }
  return Admission::kAdmitted;
}

void EngineCore::Impl::UpdateKeys(Sequence* s) const {
  while ((static_cast<int32_t>(s->keys.size()) + 1) * options_.block_size <= s->num_known()) {
    const int32_t i = static_cast<int32_t>(s->keys.size());
    s->keys.push_back(NextBlockKey(ParentKey(*s, i), "", BlockTokens(*s, i)));
  }
}

void EngineCore::Impl::MatchPrefix(Sequence* s) {
  hits_.clear();
  if (!s->request->keep_keys) return;
  UpdateKeys(s);
  if (!s->request->in.read_prefix_cache) return;
  // At least the last token is computed: its logits are needed.
  const int32_t most = (s->num_known() - 1) / options_.block_size;
  for (int32_t i = 0; i < most; ++i) {
    const std::optional<int32_t> id =
        blocks_.Find(s->keys[i], ParentKey(*s, i), BlockTokens(*s, i));
    if (!id.has_value()) return;
    hits_.push_back(*id);
  }
}

bool EngineCore::Impl::MustAwait(Sequence* s, int32_t num_hits) {
  Request* r = s->request;
  if (!await_ || !r->dedup || !r->in.read_prefix_cache || !r->keep_keys) return false;
  if (num_hits >= (s->num_known() - 1) / options_.block_size) return false;
  const auto it = computing_.find(s->keys[num_hits]);
  if (it == computing_.end()) return false;
  const Sequence& other = *it->second;
  if (other.request->out_of_credits()) return false;
  if (r->awaited_id != other.id || r->awaited_done != other.num_done) {
    r->awaited_id = other.id;
    r->awaited_done = other.num_done;
    r->awaited_since = num_plan_calls_;
  }
  if (num_plan_calls_ - r->awaited_since > kMaxPlansAwaited) r->dedup = false;
  return r->dedup;
}

void EngineCore::Impl::RegisterComputing(Sequence* s) {
  if (!caching_ || !s->request->in.store_prefix) return;
  for (size_t i = s->num_committed; i < s->keys.size(); ++i) computing_.try_emplace(s->keys[i], s);
}

void EngineCore::Impl::UnregisterComputing(Sequence* s) {
  for (size_t i = s->num_committed; i < s->keys.size(); ++i) {
    const auto it = computing_.find(s->keys[i]);
    if (it != computing_.end() && it->second == s) computing_.erase(it);
  }
}

bool EngineCore::Impl::ReserveSlots(Sequence* s) {
  const Request& r = *s->request;
  if (r.max_tokens == 0 || s->slot >= 0) return true;
  const int32_t needed = Weight(*s);
  // Sequences that wait for their client, or for more urgent ones, can do without.
  for (auto it = waiting_.rbegin();
       static_cast<int32_t>(free_slots_.size()) < needed && it != waiting_.rend(); ++it) {
    Sequence* other = *it;
    if (other != s && other->slot >= 0 && other->num_flights == 0 && other->request->forked &&
        (other->request->out_of_credits() || other->request->in.priority < r.in.priority)) {
      GiveUpSlot(other);
    }
  }
  if (static_cast<int32_t>(free_slots_.size()) < needed) return false;
  for (int32_t i = 0; i < needed; ++i) {
    Sequence* choice = r.forked ? s : r.choices[i].get();
    choice->slot = free_slots_.back();
    free_slots_.pop_back();
  }
  return true;
}

void EngineCore::Impl::GiveUpSlot(Sequence* s) {
  if (s->slot < 0) return;
  if (s->slot_attached) detach_.push_back(s->slot);
  free_slots_.push_back(s->slot);
  s->slot = -1;
  s->slot_attached = false;
}

bool EngineCore::Impl::ReserveMemory(Sequence* s) {
  while (true) {
    int32_t missing;
    if (options_.paged) {
      // What running sequences still need for what is known of them is spoken for.
      int32_t reserved = 0;
      for (const Sequence* other : running_) {
        reserved +=
            std::max(BlocksFor(other->target()) - static_cast<int32_t>(other->blocks.size()), 0);
      }
      int32_t idle_hits = 0;
      for (const int32_t id : hits_) idle_hits += !blocks_.IsHeld(id);
      const int32_t needed = BlocksFor(s->num_known()) - static_cast<int32_t>(hits_.size());
      missing = needed + reserved + idle_hits - blocks_.num_available();
    } else {
      missing = blocks_.num_free_runs() == 0 ? 1 : 0;
    }
    if (missing <= 0) return true;
    if (missing <= blocks_.num_returning()) return false;  // soon
    Sequence* victim = PickVictim(*s, /*admission=*/true);
    if (victim == nullptr) return false;
    Preempt(victim);
  }
}

// --- Blocks ---

bool EngineCore::Impl::EnsureBlocks(Sequence* s, int32_t end) {
  if (!options_.paged) return true;
  const int32_t first = s->num_planned / options_.block_size;  // the first that is written
  while (true) {
    const int32_t have = static_cast<int32_t>(s->blocks.size());
    const bool copy = first < have && !blocks_.IsWritable(s->blocks[first]);
    const int32_t needed = BlocksFor(end) - have + copy;
    if (needed <= blocks_.num_available()) {
      if (copy) {
        const int32_t from = s->blocks[first];
        const int32_t to = blocks_.Allocate().value();
        plan_->copies.push_back({from, to});
        // Nobody may get `from` before the copy is made.
        blocks_.Defer(from);
        building_->deferred.push_back(from);
        s->blocks[first] = to;
      }
      while (static_cast<int32_t>(s->blocks.size()) < BlocksFor(end)) {
        s->blocks.push_back(blocks_.Allocate().value());
      }
      return true;
    }
    if (needed <= blocks_.num_available() + blocks_.num_returning()) return false;  // soon
    Sequence* victim = PickVictim(*s, /*admission=*/false);
    if (victim == nullptr) return false;
    Preempt(victim);
  }
}

Sequence* EngineCore::Impl::PickVictim(const Sequence& s, bool admission) const {
  const auto can_go = [&](const Sequence* v) {
    return v != &s && v != protected_ && v->last_step != plan_->step_id;
  };
  // Who waits for its client anyway goes first, whatever its rank.
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (can_go(*it) && (*it)->request->out_of_credits() && (*it)->num_pending == 0) return *it;
  }
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    const Sequence* v = *it;
    if (!can_go(v)) continue;
    const bool outranked = admission ? v->request->in.priority < s.request->in.priority
                                     : &s == protected_ || GoesBefore(s, *v);
    if (outranked) return *it;
  }
  return nullptr;
}

void EngineCore::Impl::Preempt(Sequence* s) {
  ++counters_.preemptions;
  Unlist(s);
  GiveUpBlocks(s);
  ++s->life;
  ListWaiting(s);
}

void EngineCore::Impl::GiveUpBlocks(Sequence* s) {
  UnregisterComputing(s);
  Flight* reader = nullptr;  // the last step in flight that uses the table
  for (const auto& flight : flights_) {
    if (s->num_flights > 0 && flight->step_id == s->last_step) reader = flight.get();
  }
  for (auto it = s->blocks.rbegin(); it != s->blocks.rend(); ++it) {
    if (reader != nullptr) {
      blocks_.Defer(*it);
      reader->deferred.push_back(*it);
    } else {
      blocks_.Release(*it);
    }
  }
  s->blocks.clear();
  s->num_planned = s->num_done = s->num_committed = 0;
}

// --- Rows ---

bool EngineCore::Impl::ScheduleRows(Sequence* s, int32_t num_rows) {
  const int32_t begin = s->num_planned, end = begin + num_rows;
  if (num_rows > rows_left_ || !EnsureBlocks(s, end)) return false;
  Request* r = s->request;
  const int32_t first_row = plan_->num_rows();
  plan_->sequences.push_back({s->id, first_row, num_rows, begin,
                              static_cast<int64_t>(plan_->block_ids.size()), BlocksFor(end)});
  plan_->block_ids.insert(plan_->block_ids.end(), s->blocks.begin(),
                          s->blocks.begin() + BlocksFor(end));
  for (int32_t p = begin; p < end; ++p) {
    TokenSource source;
    if (p < s->num_known()) {
      source.token = s->tokens[p];
    } else {  // the last plan samples it
      QUIRE_CHECK(s->num_pending == 1 && s->last_step == plan_->step_id - 1);
      source.sample_index = s->last_sample;
    }
    plan_->tokens.push_back(source);
  }
  if (s->wants_scores) {
    for (int32_t i = std::max(begin + 1, s->num_scores_planned); i <= end && i < r->num_prompt;
         ++i) {
      plan_->scores.push_back(
          {first_row + i - 1 - begin, s->tokens[i], r->sampling().num_prompt_logprobs});
      building_->scores.push_back({s, i});
      s->num_scores_planned = i + 1;
    }
  }
  for (const auto& choice : r->choices) {
    if ((r->forked && choice.get() != s) || choice->slot < 0 || choice->slot_attached) continue;
    plan_->attach_slots.push_back({choice->slot,
                                   r->in.sampling,
                                   choice->choice,
                                   r->banned_ids,
                                   r->prompt,
                                   {s->tokens.begin() + r->num_prompt, s->tokens.end()}});
    choice->slot_attached = true;
  }
  const bool wants_sample = end == s->target() && r->max_tokens > 0;
  rows_left_ -= num_rows;
  s->num_planned = end;
  s->last_step = plan_->step_id;
  ++s->num_flights;
  building_->rows.push_back({s, s->life, end});
  if (wants_sample) {
    const int32_t row = first_row + num_rows - 1;
    AddSample(s, row);
    if (!r->forked) Fork(s, row);
  }
  return true;
}

void EngineCore::Impl::AddSample(Sequence* s, int32_t row) {
  s->last_sample = static_cast<int32_t>(plan_->samples.size());
  plan_->samples.push_back({row, s->slot, s->num_outputs() + s->num_pending, 0});
  building_->samples.push_back(s);
  ++s->num_pending;
  ++s->request->num_sent;
}

// The prompt's last row is planned: from here on each choice goes its own way, on shared blocks.
void EngineCore::Impl::Fork(Sequence* first, int32_t row) {
  Request* r = first->request;
  num_running_ -= Weight(*first) - 1;
  r->forked = true;
  for (int32_t i = 1; i < r->num_choices(); ++i) {
    Sequence* s = r->choices[i].get();
    s->tokens = first->tokens;
    s->keys = first->keys;
    s->last_step = first->last_step;
    ++s->num_flights;
    building_->rows.push_back({s, s->life, first->num_planned});
    AddSample(s, row);
    if (options_.paged) {
      s->blocks = first->blocks;
      for (const int32_t id : s->blocks) blocks_.Ref(id);
      s->num_planned = first->num_planned;
      s->num_done = first->num_done;
      s->num_committed = first->num_committed;
      ListRunning(s);
    } else {  // a contiguous table cannot be shared: this choice computes the prompt itself
      ++s->life;
      ListWaiting(s);
    }
  }
}

}  // namespace quire
