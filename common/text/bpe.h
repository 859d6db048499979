// Byte-pair merging of one piece: the pair of neighbours with the lowest rank is joined first, of
// equal ranks the leftmost, until no pair of the list is left.
//
// BpeMerger is immutable once built and shared between threads; BpeScratch belongs to one call.
// Source: Sennrich et al., ACL 2016; byte-level form of GPT-2.
#ifndef QUIRE_COMMON_TEXT_BPE_H_
#define QUIRE_COMMON_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/text/tokenizer.h"

namespace quire {

// Memory that merging reuses from piece to piece, so that it allocates nothing once warm.
struct BpeScratch {
  struct Candidate {
    uint32_t rank;
    uint32_t left;              // byte position of the left part
    TokenId left_id, right_id;  // stale unless both still stand there
    TokenId merged;
    bool operator>(const Candidate& o) const {
      return rank != o.rank ? rank > o.rank : left > o.left;
    }
  };
  std::vector<TokenId> ids;
  std::vector<uint32_t> ranks;
  std::vector<TokenId> merged;
  std::vector<uint32_t> previous, next;
  std::vector<Candidate> heap;
};

class BpeMerger {
 public:
  static constexpr TokenId kNoToken = -1;

  BpeMerger() = default;

  // byte_ids[b] is the token of the byte b, or kNoToken: such a byte vanishes, as in the reference.
  void SetByteTokens(const std::array<TokenId, 256>& byte_ids) { byte_ids_ = byte_ids; }
  void Reserve(size_t num_merges);
  // False if the pair is there already. `existing_rank` gets the rank that it has. Requires ids >=
  // 0.
  bool AddMerge(TokenId left, TokenId right, uint32_t rank, TokenId merged,
                uint32_t* existing_rank);
  void Finish();  // call once behind the last AddMerge

  // Appends the tokens of `piece`. O(n log n) time for n bytes, no recursion.
  void Merge(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Pair {
    uint32_t rank;
    TokenId merged;
  };
  struct Slot {
    uint64_t key = UINT64_MAX;  // left << 32 | right; all ones = empty, since ids are not negative
    Pair pair{kNoRank, kNoToken};
  };

  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t Hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
  }
  Pair Find(TokenId left, TokenId right) const {
    const uint64_t key = Key(left, right);
    for (uint64_t i = Hash(key) & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.key == key) return slot.pair;
      if (slot.key == UINT64_MAX) return {kNoRank, kNoToken};
    }
  }
  void MergeShort(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void MergeLong(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;

  std::array<TokenId, 256> byte_ids_{};
  std::vector<Slot> slots_;  // open addressing, at most half full
  uint64_t mask_ = 0;
  std::vector<Pair> byte_pairs_;  // [65536] by the two bytes: most look-ups are these
};

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_BPE_H_
