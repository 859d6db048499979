#include "worker/engine/engine_core.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/engine/engine_core_impl.h"

namespace quire {

EngineCore::EngineCore(const EngineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
EngineCore::~EngineCore() = default;

void EngineCore::Submit(TimeUs now, EngineRequest request, EngineOutputs* outputs) {
  impl_->Submit(now, std::move(request), outputs);
}
void EngineCore::Cancel(TimeUs now, RequestId id, absl::Status status, EngineOutputs* outputs) {
  impl_->Cancel(now, id, status, outputs);
}
void EngineCore::Consumed(RequestId id, int32_t num_tokens) { impl_->Consumed(id, num_tokens); }
bool EngineCore::MakePlan(TimeUs now, StepPlan* plan, EngineOutputs* outputs) {
  return impl_->MakePlan(now, plan, outputs);
}
void EngineCore::Complete(TimeUs now, const StepResult& result, EngineOutputs* outputs) {
  impl_->Complete(now, result, outputs);
}
void EngineCore::CancelAll(TimeUs now, const absl::Status& status, EngineOutputs* outputs) {
  impl_->CancelAll(now, status, outputs);
}
int EngineCore::num_steps_in_flight() const { return impl_->num_steps_in_flight(); }
bool EngineCore::idle() const { return impl_->idle(); }
TimeUs EngineCore::next_wakeup_us() const { return impl_->next_wakeup_us(); }
EngineStats EngineCore::stats() const { return impl_->stats(); }
absl::Status EngineCore::CheckInvariants() const { return impl_->CheckInvariants(); }

EngineCore::Impl::Impl(const EngineOptions& options)
    : options_(options),
      caching_(options.enable_prefix_caching && options.paged),
      blocks_(options.num_blocks, options.block_size,
              options.paged
                  ? 0
                  : (options.max_model_len + options.block_size - 1) / options.block_size),
      prefill_limit_(options.max_num_batched_tokens) {
  QUIRE_CHECK(options.max_steps_in_flight == 1 || options.max_steps_in_flight == 2);
  QUIRE_CHECK(options.max_num_batched_tokens > 0 && options.max_num_seqs > 0);
  QUIRE_CHECK(options.max_model_len > 0 && options.num_slots > 0);
  for (int32_t slot = options.num_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

// --- Messages ---

absl::Status EngineCore::Impl::CheckRequest(const Request& r) const {
  const SamplingParams& sampling = r.sampling();
  if (r.num_prompt == 0)
    return absl::InvalidArgumentError("prompt has 0 tokens, at least 1 needed");
  if (r.num_prompt > options_.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt has ", r.num_prompt, " tokens, max_model_len is ", options_.max_model_len));
  }
  if (r.max_tokens > options_.max_model_len - r.num_prompt) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt has ", r.num_prompt, " tokens and max_tokens is ", r.max_tokens,
                     ", together over max_model_len ", options_.max_model_len));
  }
  const int32_t most_choices = std::min(options_.max_num_seqs, options_.num_slots);
  if (sampling.n < 1 || sampling.n > most_choices) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", sampling.n, ", must be in [1, ", most_choices, "]"));
  }
  const int32_t num_resume = static_cast<int32_t>(r.in.resume.size());
  if (num_resume > 0 && sampling.n != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", sampling.n, ", must be 1 with resumed tokens"));
  }
  if (num_resume > r.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_resume, " resumed tokens, max_tokens is ", r.max_tokens));
  }
  // The last sampled token is never run.
  const int32_t needed = BlocksFor(r.num_prompt + std::max(r.max_tokens - 1, 0));
  const int32_t most = options_.paged                                 ? blocks_.num_blocks()
                       : blocks_.num_blocks() >= blocks_.run_blocks() ? blocks_.run_blocks()
                                                                      : 0;
  if (needed > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt has ", r.num_prompt, " tokens and max_tokens is ", r.max_tokens, ", that takes ",
        needed, " KV blocks of ", options_.block_size, " tokens, the pool has ", most));
  }
  if (static_cast<int32_t>(waiting_.size()) >= options_.max_queue) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting_.size(), " requests are waiting, max_queue is ", options_.max_queue));
  }
  return absl::OkStatus();
}

void EngineCore::Impl::PrepareStops(Request* r) const {
  const SamplingParams& sampling = r->sampling();
  if (!sampling.ignore_eos) r->end_ids = options_.eos_ids;
  r->banned_ids = r->end_ids;
  for (int32_t i = 0; options_.tokenizer != nullptr && i < std::ssize(sampling.stop); ++i) {
    // A special token has no text to match, so a stop that spells one means its id.
    const std::optional<TokenId> id = options_.tokenizer->FindToken(sampling.stop[i]);
    if (!id.has_value() || !options_.tokenizer->IsSpecial(*id)) continue;
    r->stop_specials.emplace_back(*id, i);
    r->banned_ids.push_back(*id);
  }
  r->banned_ids.insert(r->banned_ids.end(), sampling.stop_token_ids.begin(),
                       sampling.stop_token_ids.end());
  std::sort(r->banned_ids.begin(), r->banned_ids.end());
  r->banned_ids.erase(std::unique(r->banned_ids.begin(), r->banned_ids.end()), r->banned_ids.end());
}

void EngineCore::Impl::Submit(TimeUs now, EngineRequest in, EngineOutputs* out) {
  QUIRE_CHECK(in.sampling != nullptr && !requests_.contains(in.id));
  auto owned = std::make_unique<Request>();
  Request* r = owned.get();
  r->in = std::move(in);
  r->num_prompt = static_cast<int32_t>(r->in.prompt.size());
  r->prompt = std::make_shared<const std::vector<int32_t>>(std::move(r->in.prompt));
  r->max_tokens = r->sampling().max_tokens >= 0
                      ? r->sampling().max_tokens
                      : std::max(options_.max_model_len - r->num_prompt, 0);
  if (const absl::Status status = CheckRequest(*r); !status.ok()) {
    FinishRequest(now, r, status, out);
    return;
  }
  if (r->sampling().num_prompt_logprobs >= 0) r->in.read_prefix_cache = false;
  r->keep_keys = caching_ && (r->in.read_prefix_cache || r->in.store_prefix);
  r->num_credits = std::max(r->in.credit_tokens, r->sampling().n);
  r->forked = r->sampling().n == 1;
  PrepareStops(r);
  const StopMatcher matcher(r->sampling().stop);
  r->finishes.resize(r->sampling().n);
  for (int32_t i = 0; i < r->sampling().n; ++i) {
    r->choices.push_back(
        std::make_unique<Sequence>(next_sequence_++, r, i, TextOut(options_.tokenizer, matcher)));
  }
  Sequence* first = r->choices[0].get();
  first->tokens = *r->prompt;
  // Who sent output tokens sent the prompt's scores before them.
  first->wants_scores = first->wants_first_entry =
      r->sampling().num_prompt_logprobs >= 0 && r->in.resume.empty();
  requests_.emplace(r->in.id, std::move(owned));
  counters_.prompt_tokens += r->num_prompt;

  // What another worker sent already, text and all, is history here.
  std::string text;
  ChoiceFinish finish;
  for (const int32_t token : r->in.resume) {
    ++r->num_generated;
    if (AddOutput(first, token, &text, &finish)) {
      out->started.push_back({r->in.id, r->num_prompt, 0});
      EndChoice(now, first, finish, out);
      SweepEnded();
      return;
    }
  }
  if (r->in.deadline_us > 0) deadlines_.emplace(r->in.deadline_us, r->in.id);
  ListWaiting(first);
}

void EngineCore::Impl::Cancel(TimeUs now, RequestId id, const absl::Status& status,
                              EngineOutputs* out) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  EndRequest(now, it->second.get(), status, out);
  SweepEnded();
}

void EngineCore::Impl::CancelAll(TimeUs now, const absl::Status& status, EngineOutputs* out) {
  while (!requests_.empty()) EndRequest(now, requests_.begin()->second.get(), status, out);
  SweepEnded();
}

void EngineCore::Impl::Consumed(RequestId id, int32_t num_tokens) {
  const auto it = requests_.find(id);
  if (it != requests_.end() && num_tokens > 0) it->second->num_credits += num_tokens;
}

TimeUs EngineCore::Impl::next_wakeup_us() const {
  TimeUs wakeup = blocks_.next_expiry_us();
  if (!deadlines_.empty()) {
    const TimeUs deadline = deadlines_.begin()->first;
    wakeup = wakeup == 0 ? deadline : std::min(wakeup, deadline);
  }
  return wakeup;
}

// --- Results ---

void EngineCore::Impl::Flight::Clear() {
  rows.clear();
  samples.clear();
  scores.clear();
  deferred.clear();
  prefill_was_limited = false;
  num_prefill_rows = 0;
}

void EngineCore::Impl::Complete(TimeUs now, const StepResult& result, EngineOutputs* out) {
  QUIRE_CHECK(!flights_.empty());
  std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.pop_front();
  QUIRE_CHECK(result.step_id == flight->step_id);
  QUIRE_CHECK(result.samples.size() == flight->samples.size());
  QUIRE_CHECK(result.scores.size() == flight->scores.size());
  ++counters_.steps;
  AdaptPrefillLimit(*flight, result);

  // First of all, so that what ends below releases its blocks after those that it descends from.
  for (const int32_t id : flight->deferred) blocks_.ReleaseDeferred(id);

  for (const Flight::Rows& rows : flight->rows) {
    --rows.sequence->num_flights;
    if (std::find(result.non_finite_sequences.begin(), result.non_finite_sequences.end(),
                  rows.sequence->id) != result.non_finite_sequences.end()) {
      rows.sequence->bad = true;
    }
  }
  for (size_t i = 0; i < flight->samples.size(); ++i) {
    QUIRE_CHECK(result.samples[i].size() == 1);  // no drafts are planned yet
    if (result.samples[i][0].token < 0) flight->samples[i]->bad = true;
  }
  for (size_t i = 0; i < flight->scores.size(); ++i) {
    if (result.scores[i].token < 0) flight->scores[i].sequence->bad = true;
  }

  for (const Flight::Rows& rows : flight->rows) {
    Sequence* s = rows.sequence;
    s->delta = -1;
    if (s->state == SequenceState::kEnded || s->bad) continue;
    if (s->wants_first_entry) {  // nothing predicts the first token of the prompt
      s->wants_first_entry = false;
      DeltaOf(s, out).prompt_logprobs.emplace_back().token = s->tokens[0];
    }
    if (s->life != rows.life) continue;  // preempted since: those blocks were given up
    s->num_done = rows.end;
    CommitBlocks(now, s);
  }
  for (size_t i = 0; i < flight->scores.size(); ++i) {
    TakeScore(flight->scores[i], result.scores[i], out);
  }
  for (size_t i = 0; i < flight->samples.size(); ++i) {
    Sequence* s = flight->samples[i];
    --s->num_pending;
    if (s->state != SequenceState::kEnded && !s->bad) {
      TakeSample(now, s, result.samples[i][0], out);
    }
  }
  for (const Flight::Rows& rows : flight->rows) {
    Sequence* s = rows.sequence;
    Request* r = s->request;
    if (r->ended) continue;
    if (s->bad && s->state != SequenceState::kEnded) {
      EndRequest(
          now, r,
          absl::InternalError(absl::StrCat("logits are not finite (NaN or infinity) in choice ",
                                           s->choice, " near position ", rows.end - 1)),
          out);
    } else if (r->max_tokens == 0 && s->num_done == r->num_prompt && s->life == rows.life) {
      for (const auto& choice : r->choices) {
        EndChoice(now, choice.get(), {FinishReason::kLength, ""}, out);
      }
    }
  }
  flight->Clear();
  spare_flights_.push_back(std::move(flight));
  SweepEnded();
}

void EngineCore::Impl::AdaptPrefillLimit(const Flight& flight, const StepResult& result) {
  const double step_us = result.model_seconds * 1e6;
  const double target_us = static_cast<double>(options_.max_step_us);
  if (!(target_us > 0) || !std::isfinite(step_us) || flight.num_prefill_rows == 0) return;
  // Too slow: in proportion, at once. Well inside: up again by a quarter, if the limit was felt.
  if (step_us > target_us) {
    const double scaled = flight.num_prefill_rows * (target_us / step_us);
    prefill_limit_ = std::min(prefill_limit_, static_cast<int32_t>(scaled));
  } else if (step_us < 0.75 * target_us && flight.prefill_was_limited) {
    prefill_limit_ += prefill_limit_ / 4 + 1;
  }
  prefill_limit_ =
      std::clamp(prefill_limit_, std::min(options_.block_size, options_.max_num_batched_tokens),
                 options_.max_num_batched_tokens);
}

void EngineCore::Impl::CommitBlocks(TimeUs now, Sequence* s) {
  const Request& r = *s->request;
  if (!caching_ || !r.in.store_prefix) return;
  if ((s->num_committed + 1) * options_.block_size > s->num_done) return;
  UpdateKeys(s);
  for (; (s->num_committed + 1) * options_.block_size <= s->num_done; ++s->num_committed) {
    const int32_t i = s->num_committed;
    const int32_t own = s->blocks[i];
    const int32_t id = blocks_.Commit(own, s->keys[i], ParentKey(*s, i), i, BlockTokens(*s, i));
    if (id != own) {  // computed twice: one copy is enough
      blocks_.Ref(id);
      s->blocks[i] = id;
      if (s->num_flights > 0) {
        blocks_.Defer(own);
        flights_.back()->deferred.push_back(own);
      } else {
        blocks_.Release(own);
      }
    }
    if ((i + 1) * options_.block_size <= r.in.cacheable_tokens && r.in.cacheable_ttl_us > 0) {
      blocks_.Pin(id, now + r.in.cacheable_ttl_us);
    }
    const auto it = computing_.find(s->keys[i]);
    if (it != computing_.end() && it->second == s) computing_.erase(it);
  }
}

ChoiceDelta& EngineCore::Impl::DeltaOf(Sequence* s, EngineOutputs* out) {
  if (s->delta < 0) {
    s->delta = static_cast<int32_t>(out->deltas.size());
    out->deltas.emplace_back();
    out->deltas.back().request_id = s->request->in.id;
    out->deltas.back().index = s->choice;
  }
  return out->deltas[s->delta];
}

void EngineCore::Impl::TakeScore(const Flight::Score& score, const SampledToken& sample,
                                 EngineOutputs* out) {
  Sequence* s = score.sequence;
  if (s->state == SequenceState::kEnded || s->bad) return;
  DeltaOf(s, out).prompt_logprobs.push_back(sample);
}

void EngineCore::Impl::TakeSample(TimeUs now, Sequence* s, const SampledToken& sample,
                                  EngineOutputs* out) {
  Request* r = s->request;
  ++r->num_generated;
  ++counters_.generated_tokens;
  if (r->first_token_us == 0) r->first_token_us = now;
  ChoiceDelta& delta = DeltaOf(s, out);
  delta.token_ids.push_back(sample.token);
  if (r->sampling().num_logprobs >= 0) delta.logprobs.push_back(sample);
  ChoiceFinish finish;
  if (AddOutput(s, sample.token, &delta.text, &finish)) EndChoice(now, s, finish, out);
}

bool EngineCore::Impl::AddOutput(Sequence* s, int32_t token, std::string* text,
                                 ChoiceFinish* finish) const {
  const Request& r = *s->request;
  const SamplingParams& sampling = r.sampling();
  const bool may_stop = s->num_outputs() >= sampling.min_tokens;
  s->tokens.push_back(token);
  if (may_stop && std::binary_search(r.banned_ids.begin(), r.banned_ids.end(), token)) {
    *text += s->text.Flush();
    finish->reason = FinishReason::kStop;
    if (std::find(r.end_ids.begin(), r.end_ids.end(), token) != r.end_ids.end()) return true;
    for (const auto& [id, stop] : r.stop_specials) {
      if (id == token) {
        finish->stop_matched = sampling.stop[stop];
        return true;
      }
    }
    if (options_.tokenizer != nullptr) {
      finish->stop_matched = std::string(options_.tokenizer->TokenBytes(token));
    }
    return true;
  }
  TextOut::Result added = s->text.Add(token, may_stop);
  *text += added.text;
  if (added.stop_index.has_value()) {
    *finish = {FinishReason::kStop, sampling.stop[*added.stop_index]};
    return true;
  }
  if (s->num_outputs() < r.max_tokens) return false;
  *text += s->text.Flush();
  *finish = {FinishReason::kLength, ""};
  return true;
}

// --- Ends ---

void EngineCore::Impl::Retire(Sequence* s) {
  Unlist(s);
  GiveUpBlocks(s);
  GiveUpSlot(s);
  s->state = SequenceState::kEnded;
}

void EngineCore::Impl::EndChoice(TimeUs now, Sequence* s, ChoiceFinish finish, EngineOutputs* out) {
  Request* r = s->request;
  Retire(s);
  r->num_sent -= s->num_pending;  // those tokens will be dropped
  r->finishes[s->choice] = std::move(finish);
  if (++r->num_ended == r->num_choices()) FinishRequest(now, r, absl::OkStatus(), out);
}

void EngineCore::Impl::EndRequest(TimeUs now, Request* r, const absl::Status& status,
                                  EngineOutputs* out) {
  const FinishReason reason = absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)
                                  ? FinishReason::kCancelled
                                  : FinishReason::kError;
  for (const auto& choice : r->choices) {
    if (choice->state == SequenceState::kEnded) continue;
    Retire(choice.get());
    r->finishes[choice->choice] = {reason, ""};
  }
  FinishRequest(now, r, status, out);
}

void EngineCore::Impl::FinishRequest(TimeUs now, Request* r, const absl::Status& status,
                                     EngineOutputs* out) {
  RequestFinished finished;
  finished.request_id = r->in.id;
  finished.status = status;
  finished.choices = std::move(r->finishes);
  finished.prompt_tokens = r->num_prompt;
  finished.cached_tokens = r->cached_tokens;
  finished.completion_tokens = static_cast<int32_t>(r->num_generated);
  const TimeUs arrival = r->in.arrival_us;
  finished.total_us = now - arrival;
  finished.queue_us = (r->first_scheduled_us > 0 ? r->first_scheduled_us : now) - arrival;
  if (r->first_token_us > 0) {
    finished.prefill_us = r->first_token_us - r->first_scheduled_us;
    finished.ttft_us = r->first_token_us - arrival;
    finished.decode_us = now - r->first_token_us;
  } else if (r->first_scheduled_us > 0) {
    finished.prefill_us = now - r->first_scheduled_us;
  }
  out->finished.push_back(std::move(finished));
  if (status.ok()) {
    ++counters_.requests_ok;
  } else if (absl::IsCancelled(status)) {
    ++counters_.requests_cancelled;
  } else {
    ++counters_.requests_failed;
  }
  r->ended = true;
  if (r->in.deadline_us > 0) deadlines_.erase({r->in.deadline_us, r->in.id});
  const auto it = requests_.find(r->in.id);
  if (it == requests_.end()) return;  // refused
  ended_.push_back(std::move(it->second));
  requests_.erase(it);
}

void EngineCore::Impl::SweepEnded() {
  std::erase_if(ended_, [](const std::unique_ptr<Request>& r) {
    return std::all_of(r->choices.begin(), r->choices.end(),
                       [](const auto& choice) { return choice->num_flights == 0; });
  });
}

}  // namespace quire
