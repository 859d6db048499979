#include "common/text/bpe.h"

#include <algorithm>
#include <functional>
#include <string>

#include "common/status_macros.h"
#include "common/text/unicode.h"

namespace quire {
namespace {

// Up to here a scan for the lowest rank after every merge is cheaper than a heap.
constexpr size_t kShortPiece = 96;

}  // namespace

void BpeMerger::Reserve(size_t num_merges) {
  size_t capacity = 16;
  while (capacity < 2 * num_merges) capacity *= 2;
  tags_.assign(capacity, 0);
  slots_.assign(capacity, Slot{});
  mask_ = capacity - 1;
}

bool BpeMerger::AddMerge(TokenId left, TokenId right, uint32_t rank, TokenId merged,
                         uint32_t* existing_rank) {
  QUIRE_CHECK(left >= 0 && right >= 0 && merged >= 0 && !slots_.empty());
  const uint64_t key = Key(left, right);
  const uint64_t hash = Hash(key);
  uint64_t i = hash & mask_;
  for (; tags_[i] != 0; i = (i + 1) & mask_) {
    if (slots_[i].key == key) {
      *existing_rank = slots_[i].pair.rank;
      return false;
    }
  }
  tags_[i] = Tag(hash);
  slots_[i] = {key, {rank, merged}};
  return true;
}

void BpeMerger::Finish(std::span<const unsigned char> first_bytes) {
  if (slots_.empty()) Reserve(0);
  FindWholeChars(first_bytes);
}

// Merging starts from bytes, but most characters become one token before anything joins them to a
// neighbour; those may be taken as one part from the start. A character c of bytes b1..bn, which
// merging alone makes one token, the highest rank on the way being R, is such a one if
//   - every merge that could cross its borders while it is unfinished comes later: rank > R for
//   each
//     (x, p), p a part that begins c, and each (s, y), s a part that ends c and y one that begins a
//     character (text is valid, so nothing else stands there); and
//   - so does every merge of the finished c with a neighbour: rank > R.
// For then, as long as c is unfinished, its next own merge (rank <= R) is preferred to all that
// cross its borders, and having c early offers nothing that would be preferred to what happens
// elsewhere before c is finished. Any trained vocabulary has this for its frequent characters.
void BpeMerger::FindWholeChars(std::span<const unsigned char> first_bytes) {
  const size_t vocab = first_bytes.size();
  std::vector<uint32_t> as_right(vocab, kNoRank), as_left_of_char(vocab, kNoRank);
  std::vector<uint32_t> as_left(vocab, kNoRank);
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (tags_[i] == 0) continue;
    const auto left = static_cast<size_t>(slots_[i].key >> 32);
    const auto right = static_cast<size_t>(slots_[i].key & UINT32_MAX);
    const uint32_t rank = slots_[i].pair.rank;
    QUIRE_CHECK(left < vocab && right < vocab);
    as_right[right] = std::min(as_right[right], rank);
    as_left[left] = std::min(as_left[left], rank);
    if ((first_bytes[right] & 0xC0) != 0x80) {
      as_left_of_char[left] = std::min(as_left_of_char[left], rank);
    }
  }
  whole_chars_.assign(65536, kNoToken);
  std::string bytes;
  for (char32_t c = 0; c < 65536; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    bytes.clear();
    AppendUtf8(c, bytes);
    TokenId parts[3];
    size_t n = 0;
    bool known = true;
    for (const char b : bytes) {
      parts[n] = byte_ids_[static_cast<unsigned char>(b)];
      known &= parts[n++] != kNoToken;
    }
    if (!known) continue;
    if (n == 1) {  // a byte is a part already
      whole_chars_[c] = parts[0];
      continue;
    }
    uint32_t crossing = std::min(as_right[parts[0]], as_left_of_char[parts[n - 1]]);
    uint32_t highest = 0;
    if (n == 3) {
      const Pair front = Find(parts[0], parts[1]);
      const Pair back = Find(parts[1], parts[2]);
      if (front.rank != kNoRank) crossing = std::min(crossing, as_right[front.merged]);
      if (back.rank != kNoRank) crossing = std::min(crossing, as_left_of_char[back.merged]);
      if (front.rank == kNoRank && back.rank == kNoRank) continue;
      highest = std::min(front.rank, back.rank);
      if (front.rank <= back.rank) {
        parts[0] = front.merged;
        parts[1] = parts[2];
      } else {
        parts[1] = back.merged;
      }
    }
    const Pair last = Find(parts[0], parts[1]);
    if (last.rank == kNoRank) continue;
    highest = std::max(highest, last.rank);
    const uint32_t joining = std::min(as_left[last.merged], as_right[last.merged]);
    if (crossing > highest && joining > highest) whole_chars_[c] = last.merged;
  }
}

void BpeMerger::MergeBytes(std::string_view piece, BpeScratch& scratch,
                           std::vector<TokenId>& out) const {
  scratch.ids.clear();
  for (const char c : piece) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id != kNoToken) scratch.ids.push_back(id);
  }
  MergeParts(scratch, out);
}

void BpeMerger::MergeText(std::string_view piece, BpeScratch& scratch,
                          std::vector<TokenId>& out) const {
  scratch.ids.resize(piece.size());
  TokenId* ids = scratch.ids.data();
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Char c = DecodeValidUtf8(piece.data() + pos);
    const TokenId whole = WholeChar(c.value);
    if (whole != kNoToken) {
      *ids++ = whole;
    } else {
      for (int32_t i = 0; i < c.size; ++i) {
        *ids = byte_ids_[static_cast<unsigned char>(piece[pos + static_cast<size_t>(i)])];
        // A byte that vanishes brings parts together that whole characters were not judged for.
        if (*ids == kNoToken) return MergeBytes(piece, scratch, out);
        ++ids;
      }
    }
    pos += static_cast<size_t>(c.size);
  }
  scratch.ids.resize(static_cast<size_t>(ids - scratch.ids.data()));
  MergeParts(scratch, out);
}

void BpeMerger::MergeParts(BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (scratch.ids.size() <= 1) {
    out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
  } else if (scratch.ids.size() <= kShortPiece) {
    MergeShort(scratch, out);
  } else {
    MergeLong(scratch, out);
  }
}

void BpeMerger::MergeShort(BpeScratch& scratch, std::vector<TokenId>& out) const {
  TokenId* const ids = scratch.ids.data();
  uint32_t ranks[kShortPiece];  // of the pair (i, i + 1); the last is kNoRank
  TokenId merged[kShortPiece];  // what that pair becomes
  size_t n = scratch.ids.size();
  const auto look_up = [&](size_t i) {
    const Pair pair = Find(ids[i], ids[i + 1]);
    ranks[i] = pair.rank;
    merged[i] = pair.merged;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    uint32_t best_rank = kNoRank;
    size_t best = 0;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (ranks[i] < best_rank) {
        best_rank = ranks[i];
        best = i;
      }
    }
    if (best_rank == kNoRank) break;
    ids[best] = merged[best];
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      ids[i] = ids[i + 1];
      ranks[i - 1] = ranks[i];
      merged[i - 1] = merged[i];
    }
    if (best + 1 < n) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  out.insert(out.end(), ids, ids + n);
}

// A linked list of parts and a heap of candidate merges; a candidate is outdated, and dropped when
// it comes up, if the pair that starts at its place has another rank by then.
void BpeMerger::MergeLong(BpeScratch& scratch, std::vector<TokenId>& out) const {
  std::vector<TokenId>& ids = scratch.ids;
  std::vector<uint32_t>& previous = scratch.previous;
  std::vector<uint32_t>& next = scratch.next;
  std::vector<uint32_t>& ranks = scratch.ranks;
  std::vector<TokenId>& merged = scratch.merged;
  std::vector<uint64_t>& heap = scratch.heap;
  const auto n = static_cast<uint32_t>(ids.size());
  previous.resize(n);
  next.resize(n);
  ranks.resize(n);
  merged.resize(n);
  heap.clear();
  const auto look_up = [&](uint32_t left) {
    const Pair pair = next[left] == n ? Pair{kNoRank, kNoToken} : Find(ids[left], ids[next[left]]);
    ranks[left] = pair.rank;
    merged[left] = pair.merged;
    if (pair.rank == kNoRank) return false;
    heap.push_back(static_cast<uint64_t>(pair.rank) << 32 | left);
    return true;
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;  // of the first: never used
    next[i] = i + 1;      // n = end
  }
  for (uint32_t i = 0; i < n; ++i) look_up(i);
  constexpr auto kLater = std::greater<uint64_t>();
  std::make_heap(heap.begin(), heap.end(), kLater);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kLater);
    const uint64_t candidate = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(candidate & UINT32_MAX);
    if (ranks[left] != static_cast<uint32_t>(candidate >> 32)) continue;
    const uint32_t right = next[left];
    ids[left] = merged[left];
    ranks[right] = kNoRank;  // swallowed: no pair starts there any more
    next[left] = next[right];
    if (next[right] != n) previous[next[right]] = left;
    if (look_up(left)) std::push_heap(heap.begin(), heap.end(), kLater);
    if (left != 0 && look_up(previous[left])) std::push_heap(heap.begin(), heap.end(), kLater);
  }
  for (uint32_t i = 0; i < n; i = next[i]) out.push_back(ids[i]);
}

}  // namespace quire
