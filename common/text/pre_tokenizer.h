// Pre-tokenisers: cut text into the pieces that byte-pair merging never crosses.
//
// The patterns that models bring are regular expressions with lookahead; each known one is a
// scanner written by hand here, linear and without recursion. In words (first rule that fits, L
// letter, N number, S White_Space of Unicode, \n any of CR and LF):
//   GPT-2:   contraction | ' '?L+ | ' '?N+ | ' '?other+ | S+ but the last before a non-blank | S+
//   SmolLM:  each N is a piece; what lies between two of them is cut as GPT-2 does
//   Qwen2:   contraction in any case | one of (not L, N, \n)?, L+ | N | ' '?other+ \n* | S*\n+ | S+
//   ... Llama 3, cl100k: as Qwen2 with N{1,3}
#ifndef QUIRE_COMMON_TEXT_PRE_TOKENIZER_H_
#define QUIRE_COMMON_TEXT_PRE_TOKENIZER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"

namespace quire {

// The length in bytes of the first piece of `text`, which is valid UTF-8 and not empty.
template <PreTokenizer kKind>
size_t NextPiece(std::string_view text);

// All pieces, views into `text`. Joined they are `text`.
std::vector<std::string_view> SplitPieces(PreTokenizer kind, std::string_view text);

// The pre-tokeniser whose regular expression this is (several spellings each).
// Errors: UNIMPLEMENTED naming `field` and the pattern.
absl::StatusOr<PreTokenizer> PreTokenizerOfPattern(std::string_view pattern,
                                                   const std::string& field);

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_PRE_TOKENIZER_H_
