#include "router/prefix_history.h"

#include "common/status_macros.h"

namespace quire {

std::vector<int32_t> PrefixHistory::Match(std::span<const BlockKey> keys, int num_workers) const {
  QUIRE_CHECK(num_workers <= 64);
  std::vector<int32_t> matched(static_cast<size_t>(num_workers), 0);
  uint64_t alive = num_workers == 64 ? ~uint64_t{0} : (uint64_t{1} << num_workers) - 1;
  for (const BlockKey& key : keys) {
    const auto it = entries_.find(key.prefix());
    alive &= it == entries_.end() ? 0 : it->second.workers;
    if (alive == 0) break;
    for (int w = 0; w < num_workers; ++w) {
      if ((alive >> w & 1) != 0) ++matched[static_cast<size_t>(w)];
    }
  }
  return matched;
}

void PrefixHistory::Record(std::span<const BlockKey> keys, int worker) {
  QUIRE_CHECK(worker >= 0 && worker < 64);
  // Tail first, so that the head of a chain is the youngest: a chain is useful from its head on.
  for (size_t i = keys.size(); i-- > 0;) {
    const uint64_t key = keys[i].prefix();
    const auto [it, is_new] = entries_.try_emplace(key);
    if (is_new) {
      by_age_.push_front(key);
      it->second.age = by_age_.begin();
    } else {
      by_age_.splice(by_age_.begin(), by_age_, it->second.age);
    }
    it->second.workers |= uint64_t{1} << worker;
  }
  while (entries_.size() > capacity_) {
    entries_.erase(by_age_.back());
    by_age_.pop_back();
  }
}

void PrefixHistory::ForgetWorker(int worker) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    it->second.workers &= ~(uint64_t{1} << worker);
    if (it->second.workers != 0) {
      ++it;
      continue;
    }
    by_age_.erase(it->second.age);
    it = entries_.erase(it);
  }
}

}  // namespace quire
