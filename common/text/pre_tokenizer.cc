#include "common/text/pre_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/text/unicode.h"

namespace quire {
namespace {

struct Char {
  CharClass kind;
  int32_t size;  // 0 = end of text
  char ascii;    // the character, 0 if it is not ASCII
};

inline Char CharAt(std::string_view text, size_t pos) {
  if (pos >= text.size()) return {CharClass::kOther, 0, 0};
  const char c = text[pos];
  if (static_cast<unsigned char>(c) < 0x80) {
    return {ClassOf(static_cast<char32_t>(c)), 1, c};
  }
  const Utf8Char wide = DecodeValidUtf8(text.data() + pos);
  return {ClassOf(wide.value), wide.size, 0};
}

// Marks are "other" to every pattern here: none names \p{M}.
inline bool IsOther(const Char& c) {
  return c.size != 0 && (c.kind == CharClass::kOther || c.kind == CharClass::kMark);
}

inline bool IsLineEnd(const Char& c) { return c.ascii == '\n' || c.ascii == '\r'; }

inline size_t SkipClass(std::string_view text, size_t pos, CharClass kind) {
  for (Char c = CharAt(text, pos); c.size != 0 && c.kind == kind; c = CharAt(text, pos)) {
    pos += c.size;
  }
  return pos;
}

inline size_t SkipOther(std::string_view text, size_t pos) {
  for (Char c = CharAt(text, pos); IsOther(c); c = CharAt(text, pos)) pos += c.size;
  return pos;
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd at the start of `text`, 0 if there is none. With
// `any_case` as (?i:...) does it, where the long s (U+017F) is an s too.
size_t ContractionLength(std::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto lower = [&](size_t i) -> char {
    const char c = text[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (lower(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return text.size() > 2 && lower(2) == 'e' ? 3 : 0;
    case 'l':
      return text.size() > 2 && lower(2) == 'l' ? 3 : 0;
    case '\xC5':
      return any_case && text.size() > 2 && text[2] == '\xBF' ? 3 : 0;
    default:
      return 0;
  }
}

struct BlankRun {
  size_t end;           // of the run of blanks
  size_t last_begin;    // of its last blank
  size_t line_end = 0;  // behind its last CR or LF, 0 if it has none
};

inline BlankRun ScanBlanks(std::string_view text, size_t pos) {
  BlankRun run{pos, pos, 0};
  for (Char c = CharAt(text, pos); c.size != 0 && c.kind == CharClass::kSpace;
       c = CharAt(text, pos)) {
    run.last_begin = pos;
    pos += c.size;
    run.end = pos;
    if (IsLineEnd(c)) run.line_end = pos;
  }
  return run;
}

// \s+(?!\S)|\s+ for a run that starts at 0: a blank directly before a word stays with the word.
inline size_t BlankPiece(const BlankRun& run, size_t text_size) {
  return run.end == text_size || run.last_begin == 0 ? run.end : run.last_begin;
}

size_t NextGpt2Piece(std::string_view text) {
  const Char first = CharAt(text, 0);
  if (first.ascii == '\'') {
    if (const size_t n = ContractionLength(text, false); n != 0) return n;
  }
  const size_t body = first.ascii == ' ' ? 1 : 0;
  const Char c = body == 0 ? first : CharAt(text, body);
  if (c.size != 0) {
    if (IsOther(c)) return SkipOther(text, body + c.size);
    if (c.kind != CharClass::kSpace) return SkipClass(text, body + c.size, c.kind);
  }
  return BlankPiece(ScanBlanks(text, 0), text.size());
}

// The pattern family of cl100k: at most `max_digits` numbers a piece.
template <int max_digits>
size_t NextCl100kPiece(std::string_view text) {
  const Char first = CharAt(text, 0);
  if (first.kind == CharClass::kLetter) return SkipClass(text, first.size, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) {
    size_t end = first.size;
    for (int i = 1; i < max_digits; ++i) {
      const Char c = CharAt(text, end);
      if (c.size == 0 || c.kind != CharClass::kNumber) break;
      end += c.size;
    }
    return end;
  }
  if (first.ascii == '\'') {
    if (const size_t n = ContractionLength(text, true); n != 0) return n;
  }
  const Char second = CharAt(text, first.size);
  if (second.size != 0 && second.kind == CharClass::kLetter && !IsLineEnd(first)) {
    return SkipClass(text, first.size + second.size, CharClass::kLetter);
  }
  if (IsOther(first) || (first.ascii == ' ' && IsOther(second))) {
    size_t end = SkipOther(text, first.size);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  const BlankRun run = ScanBlanks(text, 0);
  if (run.line_end != 0) return run.line_end;
  return BlankPiece(run, text.size());
}

size_t NextSmolLmPiece(std::string_view text) {
  const Char first = CharAt(text, 0);
  if (first.kind == CharClass::kNumber) return first.size;
  // As if the text ended before the next number: only the rule for blanks looks ahead.
  if (first.kind == CharClass::kSpace) {
    const BlankRun run = ScanBlanks(text, 0);
    if (CharAt(text, run.end).kind == CharClass::kNumber) return run.end;
  }
  return NextGpt2Piece(text);
}

template <PreTokenizer kKind>
void SplitAll(std::string_view text, std::vector<std::string_view>& pieces) {
  while (!text.empty()) {
    const size_t n = NextPiece<kKind>(text);
    pieces.push_back(text.substr(0, n));
    text.remove_prefix(n);
  }
}

constexpr std::string_view kGpt2Patterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
};

// What stands before and behind the part for numbers, in the spellings that are seen.
struct Cl100kSpelling {
  std::string_view head, tail;
};
constexpr Cl100kSpelling kCl100kSpellings[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    // llama.cpp; the long s is no s here, which no text we know of tells apart
    {R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|)",
     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    // tiktoken; possessive, which changes nothing here
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|)",
     R"(| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"},
};

}  // namespace

template <>
size_t NextPiece<PreTokenizer::kGpt2>(std::string_view text) {
  return NextGpt2Piece(text);
}
template <>
size_t NextPiece<PreTokenizer::kSmolLm>(std::string_view text) {
  return NextSmolLmPiece(text);
}
template <>
size_t NextPiece<PreTokenizer::kQwen2>(std::string_view text) {
  return NextCl100kPiece<1>(text);
}
template <>
size_t NextPiece<PreTokenizer::kLlama3>(std::string_view text) {
  return NextCl100kPiece<3>(text);
}
template <>
size_t NextPiece<PreTokenizer::kCl100k>(std::string_view text) {
  return NextCl100kPiece<3>(text);
}

std::vector<std::string_view> SplitPieces(PreTokenizer kind, std::string_view text) {
  std::vector<std::string_view> pieces;
  switch (kind) {
    case PreTokenizer::kGpt2:
      SplitAll<PreTokenizer::kGpt2>(text, pieces);
      break;
    case PreTokenizer::kSmolLm:
      SplitAll<PreTokenizer::kSmolLm>(text, pieces);
      break;
    case PreTokenizer::kQwen2:
      SplitAll<PreTokenizer::kQwen2>(text, pieces);
      break;
    case PreTokenizer::kLlama3:
      SplitAll<PreTokenizer::kLlama3>(text, pieces);
      break;
    case PreTokenizer::kCl100k:
      SplitAll<PreTokenizer::kCl100k>(text, pieces);
      break;
  }
  return pieces;
}

absl::StatusOr<PreTokenizer> PreTokenizerOfPattern(std::string_view pattern,
                                                   const std::string& field) {
  if (std::find(std::begin(kGpt2Patterns), std::end(kGpt2Patterns), pattern) !=
      std::end(kGpt2Patterns)) {
    return PreTokenizer::kGpt2;
  }
  for (const Cl100kSpelling& s : kCl100kSpellings) {
    if (!pattern.starts_with(s.head) || !pattern.ends_with(s.tail) ||
        pattern.size() < s.head.size() + s.tail.size()) {
      continue;
    }
    const std::string_view numbers =
        pattern.substr(s.head.size(), pattern.size() - s.head.size() - s.tail.size());
    if (numbers == R"(\p{N})") return PreTokenizer::kQwen2;
    if (numbers == R"(\p{N}{1,3})" || numbers == R"(\p{N}{1,3}+)") return PreTokenizer::kLlama3;
  }
  return absl::UnimplementedError(
      absl::StrCat(field, " is a pattern that is not known here: \"",
                   std::string(pattern.substr(0, 400)), pattern.size() > 400 ? "..." : "",
                   "\"; known are those of GPT-2, SmolLM, Qwen2/Qwen3, Llama 3 and cl100k"));
}

}  // namespace quire
