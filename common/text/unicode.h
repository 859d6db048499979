// UTF-8 and the few character properties that tokenisers need.
//
// Pure functions on constant tables (Unicode 16.0, made by gen_unicode_tables.py; composition
// itself is utf8proc's, whose data may be older: it differs only for characters added since).
#ifndef QUIRE_COMMON_TEXT_UNICODE_H_
#define QUIRE_COMMON_TEXT_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

enum class CharClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kMark = 3, kSpace = 4 };

namespace unicode_internal {
extern const unsigned char kIndex[];         // [kLimit / 128]
extern const char kValues[];                 // [blocks][128]
inline constexpr char32_t kLimit = 0x32400;  // from here on by rule
}  // namespace unicode_internal

// Low three bits: CharClass; bit 3: NFC may change the character or join it to the one before.
inline uint8_t CharProperties(char32_t c) {
  if (c < 128) return static_cast<uint8_t>(unicode_internal::kValues[c] & 15);
  if (c < unicode_internal::kLimit) {
    const size_t block = unicode_internal::kIndex[c >> 7];
    return static_cast<uint8_t>(unicode_internal::kValues[block * 128 + (c & 127)] & 15);
  }
  return c >= 0xE0100 && c < 0xE01F0 ? static_cast<uint8_t>(CharClass::kMark) : 0;
}
inline CharClass ClassOf(char32_t c) { return static_cast<CharClass>(CharProperties(c) & 7); }
inline bool NfcUnsafe(char32_t c) { return (CharProperties(c) & 8) != 0; }

// One character of text that is known to be valid. Requires p < end.
struct Utf8Char {
  char32_t value;
  int32_t size;
};
inline Utf8Char DecodeValidUtf8(const char* p) {
  const auto b = [p](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t first = b(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (b(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F), 4};
}

void AppendUtf8(char32_t c, std::string& out);

// What stands at the start of `bytes` (not empty), by the rule of WHATWG and Unicode ("maximal
// subpart"): a whole character, an invalid part of `size` bytes that is worth one U+FFFD, or the
// start of a character that `bytes` cuts off (size = all that is left).
struct Utf8Part {
  enum class Kind { kValid, kInvalid, kIncomplete };
  Kind kind;
  size_t size;
};
Utf8Part NextUtf8Part(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);
// Where the first byte stands that is no part of a valid character; bytes.size() if there is none.
size_t FirstInvalidUtf8(std::string_view bytes);
// Each maximal invalid part becomes U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Normalisation form C of valid UTF-8. `changed` false: `text` is in that form already and the
// result is to be ignored (no copy is made). O(n log n).
std::string ToNfc(std::string_view text, bool* changed);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_UNICODE_H_
