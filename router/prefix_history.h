// PrefixHistory: which worker was sent which prefix, as far as this router remembers. A hint: the
// worker matches again against its real pool.
//
// Keys are the first 8 bytes of block keys; least recently used ones go first. Owner: external
// locking.
#ifndef QUIRE_ROUTER_PREFIX_HISTORY_H_
#define QUIRE_ROUTER_PREFIX_HISTORY_H_

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/block_key.h"

namespace quire {

class PrefixHistory {
 public:
  // At most 64 workers; `capacity` in keys (about 100 bytes each).
  explicit PrefixHistory(size_t capacity = 1 << 18) : capacity_(capacity) {}

  // Leading blocks of `keys` that each worker was sent before, by worker index.
  std::vector<int32_t> Match(std::span<const BlockKey> keys, int num_workers) const;

  // `worker` computes or holds all of `keys` from now on.
  void Record(std::span<const BlockKey> keys, int worker);

  void ForgetWorker(int worker);  // it lost its cache
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t workers = 0;  // bit set
    std::list<uint64_t>::iterator age;
  };
  const size_t capacity_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::list<uint64_t> by_age_;  // youngest first; one entry a key
};

}  // namespace quire

#endif  // QUIRE_ROUTER_PREFIX_HISTORY_H_
