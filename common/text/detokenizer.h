// Text out, one token at a time: whole characters only, and stop strings across tokens.
//
// Owner: one sequence. Deterministic, no locks.
#ifndef QUIRE_COMMON_TEXT_DETOKENIZER_H_
#define QUIRE_COMMON_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer.h"

namespace quire {

// IncrementalDetokenizer turns ids into text deltas. The deltas joined equal Decode of all ids; no
// delta ends inside a character, and none is held back longer than needed to know the character.
class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens = true);

  std::string Add(TokenId id);  // the text that became certain
  std::string Flush();          // what is left, broken characters as U+FFFD

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_tokens_;
  std::string pending_;  // at most 3 bytes: the start of a character
};

// StopMatcher finds the first stop string in a stream of text and holds back only the longest
// suffix that could still become one. The match that is complete first wins; of those that end
// together, the longest. The stop string itself is not given out. Cost per byte is constant
// (Aho-Corasick).
class StopMatcher {
 public:
  struct Result {
    std::string text;                   // may be given out now
    std::optional<int32_t> stop_index;  // which stop string matched; nothing follows after it
  };

  explicit StopMatcher(const std::vector<std::string>& stops);  // empty strings are ignored

  Result Add(std::string_view text);
  std::string Flush();  // what was held back, at the end without a stop

 private:
  struct Automaton;
  std::shared_ptr<const Automaton> automaton_;  // null without stops
  int32_t state_ = 0;
  std::string held_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_DETOKENIZER_H_
