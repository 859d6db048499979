// BlockManager: which KV block of the device tier is whose, and which full blocks can be found.
//
// It deals in ids only; the bytes belong to the backend. A holder (a sequence's table, or a table
// given up while a step in flight still reads it) has one ticket a block. Full blocks that were
// computed are committed: indexed by block key, token ids kept beside it and compared on a hit.
// A committed block without tickets stays cached until its memory is wanted.
//
// Eviction: least recently used first, and the tail of a chain before its head. The second follows
// from two rules that callers keep: who holds a committed block holds its ancestors too, and tables
// are released from the tail. Pinned blocks go only when nothing else is left, the one that expires
// first (then the deepest) first; at most half of the pool is pinned, and every pin expires.
//
// Owner: the engine core's thread. No locks. Invariants: CheckInvariants.
// Source: paged KV cache, Kwon et al., SOSP 2023, section 4.
#ifndef QUIRE_WORKER_ENGINE_BLOCK_MANAGER_H_
#define QUIRE_WORKER_ENGINE_BLOCK_MANAGER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/block_key.h"
#include "common/clock.h"

namespace quire {

class BlockManager {
 public:
  // Requires num_blocks >= 0, block_size > 0. With run_blocks > 0 the pool is cut into runs of that
  // many consecutive blocks (the contiguous layout), a rest is left unused, and only AllocateRun
  // gives memory out.
  BlockManager(int32_t num_blocks, int32_t block_size, int32_t run_blocks = 0);
  BlockManager(const BlockManager&) = delete;

  // One block with one ticket; a cached one is evicted if none is free. Absent if all are held.
  std::optional<int32_t> Allocate();
  // The first id of a free run, one ticket on each of its blocks. Absent if there is none.
  std::optional<int32_t> AllocateRun();

  void Ref(int32_t id);      // One more ticket. Requires a held or cached block.
  void Release(int32_t id);  // One ticket less; at zero the block is cached (if committed) or free.

  // Marks one ticket as waiting for a step in flight; ReleaseDeferred gives it back. Such a ticket
  // keeps the block but does not make it shared: what reads under it was planned before.
  void Defer(int32_t id);
  void ReleaseDeferred(int32_t id);

  // True if its one holder may write into it: nobody else will read it and it is not committed.
  bool IsWritable(int32_t id) const {
    return num_tickets_[id] - num_deferred_[id] == 1 && !blocks_[id].committed;
  }
  bool IsHeld(int32_t id) const { return num_tickets_[id] > 0; }
  int32_t num_tickets(int32_t id) const { return num_tickets_[id]; }

  // The committed block of `key` if its parent key and token ids are the same too.
  std::optional<int32_t> Find(const BlockKey& key, const BlockKey& parent,
                              std::span<const int32_t> tokens) const;

  // Makes held block `id` findable. If an equal block is committed already, gives that one's id:
  // the caller moves its ticket over. `depth` is the block's place in its chain, 0 for the first.
  // Requires that all positions of the block were computed by completed steps.
  int32_t Commit(int32_t id, const BlockKey& key, const BlockKey& parent, int32_t depth,
                 std::span<const int32_t> tokens);

  // Keeps a committed block from ordinary eviction until `until`; a later time wins. False if it is
  // not committed, its parent is not pinned for as long, or half of the pool is pinned.
  bool Pin(int32_t id, TimeUs until);
  void ExpirePins(TimeUs now);
  TimeUs next_expiry_us() const { return pins_.empty() ? 0 : std::get<0>(*pins_.begin()); }

  int32_t num_blocks() const { return num_blocks_; }
  int32_t block_size() const { return block_size_; }
  int32_t run_blocks() const { return run_blocks_; }
  int32_t num_free() const { return num_free_; }
  int32_t num_cached() const { return num_cached_; }  // committed, no tickets; pinned ones too
  int32_t num_held() const { return num_blocks_ - num_free_ - num_cached_; }
  int32_t num_pinned() const { return static_cast<int32_t>(pins_.size()); }
  int32_t num_available() const { return num_free_ + num_cached_; }
  int32_t num_free_runs() const { return static_cast<int32_t>(free_list_.size()); }  // runs only
  // Held blocks that will be available once the steps in flight are done.
  int32_t num_returning() const { return num_returning_; }
  int64_t num_tickets_open() const { return num_tickets_open_; }

  // OK, or INTERNAL naming the first broken invariant. O(num_blocks).
  absl::Status CheckInvariants() const;

 private:
  struct Block {
    BlockKey key, parent;
    int32_t depth = 0;
    bool committed = false;
    TimeUs pinned_until = 0;       // 0 = not pinned
    int32_t prev = -1, next = -1;  // in the list of cached blocks that are not pinned
  };
  using PinKey = std::tuple<TimeUs, int32_t, int32_t>;  // until, -depth, id

  void LinkMostRecent(int32_t id);
  void Unlink(int32_t id);
  void Uncommit(int32_t id);  // out of the index, pins and lists; requires no tickets
  void Free(int32_t id);
  std::span<const int32_t> TokensOf(int32_t id) const;

  const int32_t num_blocks_, block_size_, run_blocks_;
  std::vector<int32_t> num_tickets_, num_deferred_;  // [num_blocks]
  std::vector<Block> blocks_;                        // [num_blocks + 1], the last is the list head
  std::vector<int32_t> tokens_;                      // [num_blocks, block_size] of committed blocks
  std::vector<int32_t> free_list_;                   // a stack of ids, or of first ids of runs
  absl::flat_hash_map<BlockKey, int32_t, BlockKeyHash> index_;
  std::set<PinKey> pins_;
  int32_t num_free_ = 0, num_cached_ = 0, num_returning_ = 0;
  int64_t num_tickets_open_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_BLOCK_MANAGER_H_
