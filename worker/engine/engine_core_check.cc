// Statistics and invariants of the engine core.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/engine/engine_core_impl.h"

namespace quire {

EngineStats EngineCore::Impl::stats() const {
  EngineStats stats = counters_;
  stats.num_waiting = static_cast<int32_t>(waiting_.size());
  stats.num_running = num_running_;
  stats.blocks_total = blocks_.num_blocks();
  stats.blocks_held = blocks_.num_held();
  stats.blocks_cached = blocks_.num_cached();
  stats.blocks_free = blocks_.num_free();
  stats.blocks_pinned = blocks_.num_pinned();
  stats.tickets_open = blocks_.num_tickets_open();
  stats.slots_allocated = static_cast<int64_t>(blocks_.num_held()) * options_.block_size;
  // All positions of held blocks are used but those behind the end of a table's positions. Holders
  // of a shared last block share its tail.
  int64_t unused = 0;
  for (const Sequence* s : running_) {
    if (s->blocks.empty()) continue;
    const int64_t tail =
        static_cast<int64_t>(s->blocks.size()) * options_.block_size - s->num_planned;
    unused += tail / std::max(blocks_.num_tickets(s->blocks.back()), 1);
  }
  stats.slots_used = std::max<int64_t>(stats.slots_allocated - unused, 0);
  return stats;
}

absl::Status EngineCore::Impl::CheckInvariants() const {
  if (absl::Status status = blocks_.CheckInvariants(); !status.ok()) return status;
  const auto broken = [](auto&&... what) {
    return absl::InternalError(absl::StrCat("engine core: ", what...));
  };

  // tickets: each ticket belongs to a table or to a step in flight.
  std::vector<int32_t> tickets(blocks_.num_blocks(), 0);
  for (const auto& flight : flights_) {
    for (const int32_t id : flight->deferred) ++tickets[id];
  }
  std::vector<int32_t> slot_users(options_.num_slots, 0);
  size_t num_listed = 0;
  for (const auto& [id, r] : requests_) {
    if (r->ended) return broken("request ", id, " has ended and is still listed");
    for (const auto& choice : r->choices) {
      const Sequence& s = *choice;
      for (const int32_t block : s.blocks) ++tickets[block];
      if (s.slot >= 0) ++slot_users[s.slot];
      const bool running = s.state == SequenceState::kRunning;
      if (!running && !s.blocks.empty()) {
        return broken("sequence ", s.id, " does not run and holds ", s.blocks.size(), " blocks");
      }
      if (running && options_.paged &&
          static_cast<int32_t>(s.blocks.size()) != BlocksFor(s.num_planned)) {
        return broken("sequence ", s.id, " holds ", s.blocks.size(), " blocks for ", s.num_planned,
                      " positions");
      }
      if (s.num_done > s.num_planned || s.num_planned > s.target() ||
          s.num_committed * options_.block_size > s.num_done) {
        return broken("sequence ", s.id, ": committed ", s.num_committed, " blocks, done ",
                      s.num_done, ", planned ", s.num_planned, ", known ", s.num_known());
      }
      if (s.num_outputs() + s.num_pending > r->max_tokens && s.state != SequenceState::kUnborn &&
          s.state != SequenceState::kEnded) {
        return broken("sequence ", s.id, " plans beyond max_tokens ", r->max_tokens);
      }
      if (running && r->max_tokens > 0 && s.slot < 0) {
        return broken("sequence ", s.id, " runs without a sampler slot");
      }
      if (s.state == SequenceState::kUnborn && r->forked) {
        return broken("sequence ", s.id, " was forgotten at the fork");
      }
      num_listed += running || s.state == SequenceState::kWaiting;
    }
  }
  for (int32_t id = 0; id < blocks_.num_blocks(); ++id) {
    if (tickets[id] != blocks_.num_tickets(id)) {
      return broken("block ", id, " has ", blocks_.num_tickets(id), " tickets, ", tickets[id],
                    " are known");
    }
  }

  // lists: each sequence that lives is in one list, in order; the running set keeps its limit.
  const auto before = [](const Sequence* a, const Sequence* b) { return GoesBefore(*a, *b); };
  int32_t num_running = 0;
  for (const Sequence* s : running_) {
    if (s->state != SequenceState::kRunning) return broken("sequence ", s->id, " does not run");
    num_running += Weight(*s);
  }
  for (const Sequence* s : waiting_) {
    if (s->state != SequenceState::kWaiting) return broken("sequence ", s->id, " does not wait");
  }
  if (!std::is_sorted(running_.begin(), running_.end(), before) ||
      !std::is_sorted(waiting_.begin(), waiting_.end(), before) ||
      running_.size() + waiting_.size() != num_listed) {
    return broken("the lists of sequences are out of order");
  }
  if (num_running != num_running_ || num_running > options_.max_num_seqs) {
    return broken(num_running, " choices run, counted ", num_running_, ", max_num_seqs ",
                  options_.max_num_seqs);
  }

  // slots: each sampler slot is free or has one sequence.
  for (const int32_t slot : free_slots_) ++slot_users[slot];
  for (int32_t slot = 0; slot < options_.num_slots; ++slot) {
    if (slot_users[slot] != 1) {
      return broken("sampler slot ", slot, " has ", slot_users[slot], " users");
    }
  }

  // computing: a key that others wait for is being computed by a running sequence.
  for (const auto& [key, s] : computing_) {
    if (std::find(running_.begin(), running_.end(), s) == running_.end()) {
      return broken("key ", key.ToHex(), " is computed by nobody");
    }
  }
  if (static_cast<int>(flights_.size()) > options_.max_steps_in_flight) {
    return broken(flights_.size(), " steps in flight");
  }
  return absl::OkStatus();
}

}  // namespace quire
