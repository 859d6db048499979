// What sequences hold: prefixes found, blocks, sampler slots; and who has to give them up.
#include <algorithm>

#include "common/status_macros.h"
#include "worker/engine/engine_core_impl.h"

namespace quire {
namespace {

// A waiting request stops waiting for another one's blocks when that one got nowhere for so many
// plans (its client takes nothing, it lacks blocks, others go first).
constexpr int64_t kMaxPlansAwaited = 64;

}  // namespace

// --- Prefixes ---

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

// --- Sampler slots ---

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

// --- Blocks ---

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
  // A sequence that was preempted when it was not the oldest and has become that since: whoever
  // runs now is younger.
  const bool senior =
      admission && s.request->started && (protected_ == nullptr || IsOlder(s, *protected_));
  const auto can_go = [&](const Sequence* v) {
    return v != &s && (v != protected_ || senior) && v->last_step != plan_->step_id;
  };
  // Who waits for its client anyway goes first, whatever its rank.
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (can_go(*it) && (*it)->request->out_of_credits() && (*it)->num_pending == 0) return *it;
  }
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    const Sequence* v = *it;
    if (!can_go(v)) continue;
    const bool outranked = admission ? v->request->in.priority < s.request->in.priority ||
                                           (senior && GoesBefore(s, *v))
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

}  // namespace quire
