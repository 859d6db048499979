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

  AdmitUrgent();
  ScheduleProtected();
  ScheduleInOrder();
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

// Admissions at the cost of running sequences come before those get rows.
void EngineCore::Impl::AdmitUrgent() {
  if (running_.empty()) return;
  scratch_waiting_.assign(waiting_.begin(), waiting_.end());
  for (Sequence* s : scratch_waiting_) {
    if (!IsSenior(*s) && s->request->in.priority <= running_.back()->request->in.priority) continue;
    if (Admit(s) == Admission::kBlocked || running_.empty()) return;
  }
}

// The oldest goes before all others: whom it needs blocks of must not be in this plan yet.
void EngineCore::Impl::ScheduleProtected() {
  Sequence* s = protected_;
  if (s == nullptr || !CanRun(*s)) return;
  if (s->num_rows_left() == 1) {
    ScheduleRows(s, 1);
    return;
  }
  // Its prefill leaves rows for decodes; behind more urgent ones it gets a block a step.
  const bool first =
      running_.front() == s && (waiting_.empty() || GoesBefore(*s, *waiting_.front()));
  const int32_t num_others = static_cast<int32_t>(running_.size()) - 1;
  const int32_t least = std::min(options_.block_size, std::max(rows_left_ / 2, 1));
  SchedulePrefill(s, first ? std::max(least, rows_left_ - num_others) : least);
}

// Decodes. Where memory is short a prefill takes its turn here too, a block at a time: afterwards
// the decodes that it goes before could not be preempted for it any more.
void EngineCore::Impl::ScheduleInOrder() {
  scratch_running_.assign(running_.begin(), running_.end());
  for (Sequence* s : scratch_running_) {
    if (rows_left_ == 0) return;
    if (!CanRun(*s)) continue;
    const int32_t end = std::min(s->target(), s->num_planned + options_.block_size);
    const int32_t needed = BlocksFor(end) - static_cast<int32_t>(s->blocks.size());
    if (s->num_rows_left() == 1) {
      ScheduleRows(s, 1);
    } else if (needed > blocks_.num_available()) {
      SchedulePrefill(s, options_.block_size);
    }
  }
}

void EngineCore::Impl::SchedulePrefill(Sequence* s, int32_t most) {
  const int32_t wanted = s->num_rows_left();
  const int32_t num_rows = std::min({wanted, prefill_left_, rows_left_, most});
  if (num_rows <= 0 || !ScheduleRows(s, num_rows)) return;
  prefill_left_ -= num_rows;
  building_->num_prefill_rows += num_rows;
  building_->prefill_was_limited |= num_rows < wanted && prefill_left_ == 0 && rows_left_ > 0;
}

void EngineCore::Impl::SchedulePrefills() {
  scratch_running_.clear();
  for (Sequence* s : running_) {
    if (s->num_rows_left() > 1 && CanRun(*s)) scratch_running_.push_back(s);
  }
  scratch_waiting_.assign(waiting_.begin(), waiting_.end());
  size_t next_running = 0, next_waiting = 0;
  while (prefill_left_ > 0 && rows_left_ > 0) {
    const bool has_running = next_running < scratch_running_.size();
    const bool has_waiting = next_waiting < scratch_waiting_.size();
    if (!has_running && !has_waiting) return;
    if (has_running && (!has_waiting || GoesBefore(*scratch_running_[next_running],
                                                   *scratch_waiting_[next_waiting]))) {
      Sequence* s = scratch_running_[next_running++];
      if (CanRun(*s)) SchedulePrefill(s, prefill_left_);
      continue;
    }
    Sequence* s = scratch_waiting_[next_waiting++];
    const Admission admission = Admit(s);
    if (admission == Admission::kAdmitted && CanRun(*s)) SchedulePrefill(s, prefill_left_);
    // Nobody overtakes who waits for memory or a place.
    if (admission == Admission::kBlocked) next_waiting = scratch_waiting_.size();
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
  if (IsSenior(*s)) protected_ = s;
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
