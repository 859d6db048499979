#include "worker/engine/text_out.h"

#include <utility>

namespace quire {

TextOut::TextOut(const Tokenizer* tokenizer, const StopMatcher& matcher) : matcher_(matcher) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, /*skip_special_tokens=*/true);
}

TextOut::Result TextOut::Add(TokenId token, bool look_for_stops) {
  if (!detokenizer_.has_value()) return {};
  std::string text = detokenizer_->Add(token);
  if (!look_for_stops) return {std::move(text), std::nullopt};
  StopMatcher::Result match = matcher_.Add(text);
  return {std::move(match.text), match.stop_index};
}

std::string TextOut::Flush() {
  if (!detokenizer_.has_value()) return "";
  // The broken rest of a character becomes U+FFFD, which a stop string may hold too.
  StopMatcher::Result match = matcher_.Add(detokenizer_->Flush());
  if (match.stop_index.has_value()) return std::move(match.text);
  return std::move(match.text) + matcher_.Flush();
}

}  // namespace quire
