#include "common/text/bpe.h"

#include <algorithm>
#include <functional>

#include "common/status_macros.h"

namespace quire {
namespace {

// Up to here a scan for the lowest rank after every merge is cheaper than a heap.
constexpr size_t kShortPiece = 128;

}  // namespace

void BpeMerger::Reserve(size_t num_merges) {
  size_t capacity = 16;
  while (capacity < 2 * num_merges) capacity *= 2;
  slots_.assign(capacity, Slot{});
  mask_ = capacity - 1;
}

bool BpeMerger::AddMerge(TokenId left, TokenId right, uint32_t rank, TokenId merged,
                         uint32_t* existing_rank) {
  QUIRE_CHECK(left >= 0 && right >= 0 && merged >= 0 && !slots_.empty());
  const uint64_t key = Key(left, right);
  uint64_t i = Hash(key) & mask_;
  for (; slots_[i].key != UINT64_MAX; i = (i + 1) & mask_) {
    if (slots_[i].key == key) {
      *existing_rank = slots_[i].pair.rank;
      return false;
    }
  }
  slots_[i] = {key, {rank, merged}};
  return true;
}

void BpeMerger::Finish() {
  if (slots_.empty()) Reserve(0);
  byte_pairs_.assign(65536, {kNoRank, kNoToken});
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      if (byte_ids_[a] != kNoToken && byte_ids_[b] != kNoToken) {
        byte_pairs_[a << 8 | b] = Find(byte_ids_[a], byte_ids_[b]);
      }
    }
  }
}

void BpeMerger::Merge(std::string_view piece, BpeScratch& scratch,
                      std::vector<TokenId>& out) const {
  if (piece.size() == 1) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(piece[0])];
    if (id != kNoToken) out.push_back(id);
  } else if (piece.size() <= kShortPiece) {
    MergeShort(piece, scratch, out);
  } else {
    MergeLong(piece, scratch, out);
  }
}

void BpeMerger::MergeShort(std::string_view piece, BpeScratch& scratch,
                           std::vector<TokenId>& out) const {
  if (scratch.ids.size() <= kShortPiece) {
    scratch.ids.resize(kShortPiece + 1);
    scratch.ranks.resize(kShortPiece + 1);
    scratch.merged.resize(kShortPiece + 1);
  }
  TokenId* const ids = scratch.ids.data();
  uint32_t* const ranks = scratch.ranks.data();   // of the pair (i, i + 1); the last is kNoRank
  TokenId* const merged = scratch.merged.data();  // what that pair becomes
  size_t n = 0;
  bool gaps = false;
  for (const char c : piece) {
    ids[n] = byte_ids_[static_cast<unsigned char>(c)];
    if (ids[n] == kNoToken) {
      gaps = true;
    } else {
      ++n;
    }
  }
  if (n == 0) return;
  for (size_t i = 0; i + 1 < n; ++i) {
    const Pair pair =
        gaps ? Find(ids[i], ids[i + 1])
             : byte_pairs_[static_cast<size_t>(static_cast<unsigned char>(piece[i])) << 8 |
                           static_cast<unsigned char>(piece[i + 1])];
    ranks[i] = pair.rank;
    merged[i] = pair.merged;
  }
  ranks[n - 1] = kNoRank;
  while (n > 1) {
    uint32_t best_rank = ranks[0];
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < best_rank) {
        best_rank = ranks[i];
        best = i;
      }
    }
    if (best_rank == kNoRank) break;
    ids[best] = merged[best];
    const size_t moved = n - best - 2;  // what stands behind the pair
    std::copy_n(ids + best + 2, moved, ids + best + 1);
    std::copy_n(ranks + best + 1, moved + 1, ranks + best);
    std::copy_n(merged + best + 1, moved + 1, merged + best);
    --n;
    ranks[n - 1] = kNoRank;
    if (best + 1 < n) {
      const Pair pair = Find(ids[best], ids[best + 1]);
      ranks[best] = pair.rank;
      merged[best] = pair.merged;
    }
    if (best > 0) {
      const Pair pair = Find(ids[best - 1], ids[best]);
      ranks[best - 1] = pair.rank;
      merged[best - 1] = pair.merged;
    }
  }
  out.insert(out.end(), ids, ids + n);
}

// A linked list of parts and a heap of candidate merges; outdated candidates are dropped when they
// come up.
void BpeMerger::MergeLong(std::string_view piece, BpeScratch& scratch,
                          std::vector<TokenId>& out) const {
  std::vector<TokenId>& ids = scratch.ids;
  std::vector<uint32_t>& previous = scratch.previous;
  std::vector<uint32_t>& next = scratch.next;
  std::vector<BpeScratch::Candidate>& heap = scratch.heap;
  ids.clear();
  heap.clear();
  for (const char c : piece) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id != kNoToken) ids.push_back(id);
  }
  const uint32_t n = static_cast<uint32_t>(ids.size());
  previous.resize(n);
  next.resize(n);
  const auto consider = [&](uint32_t left, uint32_t right) {
    const Pair pair = Find(ids[left], ids[right]);
    if (pair.rank != kNoRank) {
      heap.push_back({pair.rank, left, ids[left], ids[right], pair.merged});
      return true;
    }
    return false;
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;  // of the first: never used
    next[i] = i + 1;      // n = end
    if (i + 1 < n) consider(i, i + 1);
  }
  constexpr auto kLater = std::greater<BpeScratch::Candidate>();
  std::make_heap(heap.begin(), heap.end(), kLater);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kLater);
    const BpeScratch::Candidate c = heap.back();
    heap.pop_back();
    // A part that was swallowed holds kNoToken, one that grew another id: either way it is
    // outdated. Equal ids at the same place are as good as the pair that was meant.
    if (ids[c.left] != c.left_id) continue;
    const uint32_t right = next[c.left];
    if (right == n || ids[right] != c.right_id) continue;
    ids[c.left] = c.merged;
    ids[right] = kNoToken;
    next[c.left] = next[right];
    if (next[right] != n) {
      previous[next[right]] = c.left;
      if (consider(c.left, next[c.left])) std::push_heap(heap.begin(), heap.end(), kLater);
    }
    if (c.left != 0 && consider(previous[c.left], c.left)) {
      std::push_heap(heap.begin(), heap.end(), kLater);
    }
  }
  for (uint32_t i = 0; i < n; i = next[i]) out.push_back(ids[i]);
}

}  // namespace quire
