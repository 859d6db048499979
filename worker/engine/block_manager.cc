#include "worker/engine/block_manager.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace quire {

BlockManager::BlockManager(int32_t num_blocks, int32_t block_size, int32_t run_blocks)
    : num_blocks_(run_blocks > 0 ? num_blocks / run_blocks * run_blocks : num_blocks),
      block_size_(block_size),
      run_blocks_(run_blocks),
      num_tickets_(num_blocks_, 0),
      num_deferred_(num_blocks_, 0),
      blocks_(num_blocks_ + 1) {
  QUIRE_CHECK(num_blocks >= 0 && block_size > 0 && run_blocks >= 0);
  blocks_[num_blocks_].prev = blocks_[num_blocks_].next = num_blocks_;
  const int32_t unit = run_blocks_ > 0 ? run_blocks_ : 1;
  for (int32_t i = num_blocks_ / unit - 1; i >= 0; --i) free_list_.push_back(i * unit);
  num_free_ = num_blocks_;
  if (run_blocks_ == 0) {
    tokens_.resize(static_cast<size_t>(num_blocks_) * block_size_);
    index_.reserve(num_blocks_);
  }
}

std::optional<int32_t> BlockManager::Allocate() {
  QUIRE_CHECK(run_blocks_ == 0);
  if (free_list_.empty()) {
    int32_t victim = blocks_[num_blocks_].next;
    if (victim == num_blocks_) {  // only pinned ones are left
      for (const PinKey& pin : pins_) {
        if (num_tickets_[std::get<2>(pin)] == 0) {
          victim = std::get<2>(pin);
          break;
        }
      }
    }
    if (victim == num_blocks_) return std::nullopt;
    Uncommit(victim);
    --num_cached_;
    Free(victim);
  }
  const int32_t id = free_list_.back();
  free_list_.pop_back();
  --num_free_;
  num_tickets_[id] = 1;
  ++num_tickets_open_;
  return id;
}

std::optional<int32_t> BlockManager::AllocateRun() {
  QUIRE_CHECK(run_blocks_ > 0);
  if (free_list_.empty()) return std::nullopt;
  const int32_t first = free_list_.back();
  free_list_.pop_back();
  num_free_ -= run_blocks_;
  for (int32_t i = 0; i < run_blocks_; ++i) num_tickets_[first + i] = 1;
  num_tickets_open_ += run_blocks_;
  return first;
}

void BlockManager::Ref(int32_t id) {
  if (num_tickets_[id] == 0) {
    QUIRE_CHECK(blocks_[id].committed);
    if (blocks_[id].pinned_until == 0) Unlink(id);
    --num_cached_;
  } else if (num_tickets_[id] == num_deferred_[id]) {
    --num_returning_;
  }
  ++num_tickets_[id];
  ++num_tickets_open_;
}

void BlockManager::Release(int32_t id) {
  QUIRE_CHECK(num_tickets_[id] > num_deferred_[id]);
  --num_tickets_[id];
  --num_tickets_open_;
  if (num_tickets_[id] > 0) {
    if (num_tickets_[id] == num_deferred_[id]) ++num_returning_;
    return;
  }
  if (blocks_[id].committed) {
    ++num_cached_;
    if (blocks_[id].pinned_until == 0) LinkMostRecent(id);
  } else {
    Free(id);
  }
}

void BlockManager::Defer(int32_t id) {
  QUIRE_CHECK(num_tickets_[id] > num_deferred_[id]);
  if (++num_deferred_[id] == num_tickets_[id]) ++num_returning_;
}

void BlockManager::ReleaseDeferred(int32_t id) {
  QUIRE_CHECK(num_deferred_[id] > 0);
  if (num_deferred_[id]-- == num_tickets_[id]) --num_returning_;
  Release(id);
}

std::optional<int32_t> BlockManager::Find(const BlockKey& key, const BlockKey& parent,
                                          std::span<const int32_t> tokens) const {
  const auto it = index_.find(key);
  if (it == index_.end()) return std::nullopt;
  const std::span<const int32_t> have = TokensOf(it->second);
  if (!(blocks_[it->second].parent == parent) || tokens.size() != have.size() ||
      !std::equal(have.begin(), have.end(), tokens.begin())) {
    return std::nullopt;
  }
  return it->second;
}

int32_t BlockManager::Commit(int32_t id, const BlockKey& key, const BlockKey& parent, int32_t depth,
                             std::span<const int32_t> tokens) {
  QUIRE_CHECK(num_tickets_[id] > 0 && run_blocks_ == 0);
  QUIRE_CHECK(static_cast<int32_t>(tokens.size()) == block_size_);
  if (blocks_[id].committed) return id;
  const auto [it, inserted] = index_.try_emplace(key, id);
  if (!inserted) {
    // Equal content: one block is enough. Equal key and other content: ours stays unfindable.
    return Find(key, parent, tokens).value_or(id);
  }
  Block& block = blocks_[id];
  block.key = key;
  block.parent = parent;
  block.depth = depth;
  block.committed = true;
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<int64_t>(id) * block_size_);
  return id;
}

bool BlockManager::Pin(int32_t id, TimeUs until) {
  Block& block = blocks_[id];
  if (!block.committed) return false;
  if (block.pinned_until >= until) return true;
  if (block.depth > 0) {
    const auto parent = index_.find(block.parent);
    if (parent == index_.end() || blocks_[parent->second].pinned_until < until) return false;
  }
  if (block.pinned_until > 0) {
    pins_.erase({block.pinned_until, -block.depth, id});
  } else {
    if (num_pinned() >= num_blocks_ / 2) return false;
    if (num_tickets_[id] == 0) Unlink(id);
  }
  block.pinned_until = until;
  pins_.insert({until, -block.depth, id});
  return true;
}

void BlockManager::ExpirePins(TimeUs now) {
  while (!pins_.empty() && std::get<0>(*pins_.begin()) <= now) {
    const int32_t id = std::get<2>(*pins_.begin());
    pins_.erase(pins_.begin());
    blocks_[id].pinned_until = 0;
    if (num_tickets_[id] == 0) LinkMostRecent(id);
  }
}

void BlockManager::LinkMostRecent(int32_t id) {
  Block& head = blocks_[num_blocks_];
  blocks_[id].prev = head.prev;
  blocks_[id].next = num_blocks_;
  blocks_[head.prev].next = id;
  head.prev = id;
}

void BlockManager::Unlink(int32_t id) {
  Block& block = blocks_[id];
  blocks_[block.prev].next = block.next;
  blocks_[block.next].prev = block.prev;
  block.prev = block.next = -1;
}

void BlockManager::Uncommit(int32_t id) {
  Block& block = blocks_[id];
  QUIRE_CHECK(block.committed && num_tickets_[id] == 0);
  if (block.pinned_until > 0) {
    pins_.erase({block.pinned_until, -block.depth, id});
    block.pinned_until = 0;
  } else {
    Unlink(id);
  }
  index_.erase(block.key);
  block.committed = false;
}

void BlockManager::Free(int32_t id) {
  ++num_free_;
  if (run_blocks_ == 0) {
    free_list_.push_back(id);
    return;
  }
  // The blocks of a run come and go together, its last one first: the first completes the run.
  if (id % run_blocks_ == 0) free_list_.push_back(id);
}

std::span<const int32_t> BlockManager::TokensOf(int32_t id) const {
  return {tokens_.data() + static_cast<int64_t>(id) * block_size_,
          static_cast<size_t>(block_size_)};
}

absl::Status BlockManager::CheckInvariants() const {
  const auto broken = [](const std::string& what) {
    return absl::InternalError(absl::StrCat("block manager: ", what));
  };
  const int32_t unit = run_blocks_ > 0 ? run_blocks_ : 1;
  std::vector<int32_t> place(num_blocks_, -1);  // in the list, from the least recently used
  std::vector<bool> is_free(num_blocks_, false);
  int32_t listed = 0;
  for (int32_t id = blocks_[num_blocks_].next; id != num_blocks_; id = blocks_[id].next) {
    if (id < 0 || place[id] >= 0) return broken("the list of cached blocks is not a list");
    place[id] = listed++;
  }
  for (int32_t first : free_list_) {
    for (int32_t id = first; id < first + unit; ++id) {
      if (is_free[id]) return broken(absl::StrCat("block ", id, " is free twice"));
      is_free[id] = true;
    }
  }
  int32_t num_free = 0, cached = 0, pinned = 0, committed = 0, returning = 0;
  int64_t tickets = 0;
  for (int32_t id = 0; id < num_blocks_; ++id) {
    const Block& block = blocks_[id];
    tickets += num_tickets_[id];
    if (num_deferred_[id] < 0 || num_deferred_[id] > num_tickets_[id]) {
      return broken(absl::StrCat("block ", id, " defers more tickets than it has"));
    }
    const bool held = num_tickets_[id] > 0;
    returning += held && num_deferred_[id] == num_tickets_[id];
    num_free += !held && !block.committed;
    if (is_free[id] != (!held && !block.committed)) {
      return broken(absl::StrCat("block ", id, " is in the free list, held or lost wrongly"));
    }
    if ((place[id] >= 0) != (block.committed && !held && block.pinned_until == 0)) {
      return broken(absl::StrCat("block ", id, " is in the list of cached blocks wrongly"));
    }
    cached += block.committed && !held;
    committed += block.committed;
    if (block.pinned_until > 0) {
      ++pinned;
      if (!pins_.contains({block.pinned_until, -block.depth, id})) {
        return broken(absl::StrCat("the pin of block ", id, " is not known"));
      }
    }
    if (!block.committed) continue;
    const auto it = index_.find(block.key);
    if (it == index_.end() || it->second != id) {
      return broken(absl::StrCat("committed block ", id, " cannot be found"));
    }
    if (block.depth == 0) continue;
    const auto parent = index_.find(block.parent);
    if (parent == index_.end()) {
      return broken(absl::StrCat("block ", id, " outlived its parent"));
    }
    if (held && num_tickets_[parent->second] == 0) {
      return broken(absl::StrCat("block ", id, " is held and its parent is not"));
    }
    if (place[parent->second] >= 0 && place[parent->second] < place[id]) {
      return broken(absl::StrCat("block ", id, " would outlive its parent"));
    }
  }
  if (num_free != num_free_ || cached != num_cached_ || returning != num_returning_ ||
      tickets != num_tickets_open_) {
    return broken(absl::StrCat("counts: free ", num_free, "/", num_free_, " cached ", cached, "/",
                               num_cached_, " returning ", returning, "/", num_returning_,
                               " tickets ", tickets, "/", num_tickets_open_));
  }
  if (pinned != num_pinned() || pinned > num_blocks_ / 2) {
    return broken(absl::StrCat(pinned, " blocks pinned of ", num_blocks_));
  }
  if (committed != static_cast<int32_t>(index_.size())) {
    return broken(absl::StrCat(committed, " blocks committed, ", index_.size(), " indexed"));
  }
  return absl::OkStatus();
}

}  // namespace quire
