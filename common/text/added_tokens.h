// AddedTokenMatcher finds the added tokens of a tokenizer in text, leftmost first, of those that
// start together the longest. Immutable once built.
//
// A trie: the cost per byte of text is one look-up in a table of first bytes, and at most
// kMaxAddedTokenBytes steps where a token may start.
#ifndef QUIRE_COMMON_TEXT_ADDED_TOKENS_H_
#define QUIRE_COMMON_TEXT_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// Real ones are words; the limit keeps matching linear whatever a file says.
inline constexpr size_t kMaxAddedTokenBytes = 1024;

class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin, end;
    int32_t index;  // as given to Add
  };

  AddedTokenMatcher() { first_.fill(-1); }

  // False if `content` was added before. Requires 0 < size <= kMaxAddedTokenBytes.
  bool Add(std::string_view content, int32_t index);

  std::optional<Match> Find(std::string_view text, size_t from) const;
  bool empty() const { return nodes_.empty(); }

 private:
  struct Node {
    std::vector<std::pair<char, int32_t>> children;  // few
    int32_t index = -1;                              // the token that ends here
  };
  std::array<int32_t, 256> first_;  // node of each first byte, -1 = none
  int single_first_ = -1;           // the first byte if all tokens share it
  std::vector<Node> nodes_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_ADDED_TOKENS_H_
