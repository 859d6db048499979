// Byte-pair merging of one piece: the pair of neighbours with the lowest rank is joined first, of
// equal ranks the leftmost, until no pair of the list is left.
//
// BpeMerger is immutable once built and shared between threads; BpeScratch belongs to one call.
// Source: Sennrich et al., ACL 2016; byte-level form of GPT-2.
#ifndef QUIRE_COMMON_TEXT_BPE_H_
#define QUIRE_COMMON_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/text/tokenizer.h"

namespace quire {

// Memory that merging reuses from piece to piece, so that it allocates nothing once warm.
struct BpeScratch {
  std::vector<TokenId> ids;  // the parts, then the result
  std::vector<uint32_t> previous, next;
  std::vector<uint32_t> ranks;  // of the pair that starts at a part
  std::vector<TokenId> merged;  // what that pair becomes
  std::vector<uint64_t> heap;   // rank << 32 | place of the left part
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
  // Call once behind the last AddMerge. `first_bytes[id]` is the first byte of token id.
  void Finish(std::span<const unsigned char> first_bytes);

  // Appends the tokens of `piece`, any bytes. O(n log n) time for n bytes, no recursion.
  void MergeBytes(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;
  // The same for valid UTF-8, faster: starts from whole characters where that cannot matter.
  void MergeText(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;

  // The token that `c` may be taken for before any merging, or kNoToken (see FindWholeChars).
  TokenId WholeChar(char32_t c) const {
    return c < whole_chars_.size() ? whole_chars_[c] : kNoToken;
  }

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Pair {
    uint32_t rank;
    TokenId merged;
  };
  struct Slot {
    uint64_t key = 0;  // left << 32 | right
    Pair pair{kNoRank, kNoToken};
  };

  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t Hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
  }
  static unsigned char Tag(uint64_t hash) { return static_cast<unsigned char>(hash >> 56 | 1); }
  Pair Find(TokenId left, TokenId right) const {
    const uint64_t key = Key(left, right);
    const uint64_t hash = Hash(key);
    const unsigned char tag = Tag(hash);
    for (uint64_t i = hash & mask_; tags_[i] != 0; i = (i + 1) & mask_) {
      if (tags_[i] == tag && slots_[i].key == key) return slots_[i].pair;
    }
    return {kNoRank, kNoToken};
  }
  void FindWholeChars(std::span<const unsigned char> first_bytes);
  void MergeParts(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void MergeShort(BpeScratch& scratch, std::vector<TokenId>& out) const;
  void MergeLong(BpeScratch& scratch, std::vector<TokenId>& out) const;

  std::array<TokenId, 256> byte_ids_{};
  // Open addressing, at most half full. Most look-ups find nothing: the tags, 0 for empty, answer
  // those from a table that fits into the second-level cache.
  std::vector<unsigned char> tags_;
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
  std::vector<TokenId> whole_chars_;  // [65536] by character
};

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_BPE_H_
