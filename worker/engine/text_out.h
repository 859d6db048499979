// TextOut: the text of one choice, token by token: whole characters, special tokens left out, stop
// strings found across tokens.
//
// Owner: one sequence.
#ifndef QUIRE_WORKER_ENGINE_TEXT_OUT_H_
#define QUIRE_WORKER_ENGINE_TEXT_OUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/text/detokenizer.h"
#include "common/text/tokenizer.h"

namespace quire {

class TextOut {
 public:
  // `tokenizer` may be null (then there is no text) and must outlive this. Copies of one `matcher`
  // share its automaton.
  TextOut(const Tokenizer* tokenizer, const StopMatcher& matcher);

  struct Result {
    std::string text;                   // may be given out now
    std::optional<int32_t> stop_index;  // which stop string is complete; the text ends before it
  };

  // The next token. `look_for_stops` is false while min_tokens are not reached: what such tokens
  // say is never part of a stop string.
  Result Add(TokenId token, bool look_for_stops);

  // What was held back, at an end without a stop string.
  std::string Flush();

 private:
  std::optional<IncrementalDetokenizer> detokenizer_;
  StopMatcher matcher_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_TEXT_OUT_H_
