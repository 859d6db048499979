// The byte-level alphabet of GPT-2: each byte is written as one printable character, so that a
// vocabulary of byte strings fits into text files ("Ġthe" is " the").
#ifndef QUIRE_COMMON_TEXT_BYTE_LEVEL_H_
#define QUIRE_COMMON_TEXT_BYTE_LEVEL_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/text/unicode.h"

namespace quire {

class ByteLevelAlphabet {
 public:
  constexpr ByteLevelAlphabet() {
    for (auto& b : to_byte_) b = -1;
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      to_char_[b] = printable ? static_cast<char32_t>(b) : next++;
      to_byte_[to_char_[b]] = static_cast<int16_t>(b);
    }
  }

  std::string CharOf(int byte) const {
    std::string out;
    AppendUtf8(to_char_[byte], out);
    return out;
  }

  // Appends the bytes that valid UTF-8 `text` stands for. False, with `out` as it was, if a
  // character is none of the alphabet.
  bool Append(std::string_view text, std::string& out) const {
    const size_t before = out.size();
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char c = DecodeValidUtf8(text.data() + pos);
      pos += static_cast<size_t>(c.size);
      if (c.value >= to_byte_.size() || to_byte_[c.value] < 0) {
        out.resize(before);
        return false;
      }
      out.push_back(static_cast<char>(to_byte_[c.value]));
    }
    return true;
  }

 private:
  std::array<char32_t, 256> to_char_{};
  std::array<int16_t, 256 + 68> to_byte_{};  // 68 bytes are not printable
};

inline constexpr ByteLevelAlphabet kByteLevel;

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_BYTE_LEVEL_H_
