#include "common/text/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>

namespace quire {
namespace {

std::string Utf8Of(std::initializer_list<char32_t> characters) {
  std::string text;
  for (const char32_t c : characters) AppendUtf8(c, text);
  return text;
}

TEST(Unicode, Classes) {
  struct Case {
    char32_t c;
    CharClass kind;
  };
  constexpr Case kCases[] = {
      {'a', CharClass::kLetter},     {'5', CharClass::kNumber},    {' ', CharClass::kSpace},
      {'\n', CharClass::kSpace},     {'_', CharClass::kOther},     {0x85, CharClass::kSpace},
      {0xA0, CharClass::kSpace},     {0xAA, CharClass::kLetter},   {0xB2, CharClass::kNumber},
      {0x301, CharClass::kMark},     {0x3000, CharClass::kSpace},  {0x4E2D, CharClass::kLetter},
      {0x200B, CharClass::kOther},   {0xFEFF, CharClass::kOther},  {0x216B, CharClass::kNumber},
      {0xAC00, CharClass::kLetter},  {0x1F642, CharClass::kOther}, {0x20000, CharClass::kLetter},
      {0x323AF, CharClass::kLetter}, {0x323B0, CharClass::kOther}, {0xE0100, CharClass::kMark},
      {0xE01EF, CharClass::kMark},   {0xE01F0, CharClass::kOther}, {0x10FFFF, CharClass::kOther},
      {0x1C, CharClass::kOther},     {0x1C89, CharClass::kLetter},  // Unicode 16
  };
  for (const Case& c : kCases) EXPECT_EQ(ClassOf(c.c), c.kind) << std::hex << uint32_t{c.c};
}

TEST(Unicode, EncodesWhatItDecodes) {
  for (const char32_t c :
       {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    const std::string text = Utf8Of({c});
    EXPECT_TRUE(IsValidUtf8(text));
    EXPECT_EQ(DecodeValidUtf8(text.data()).value, c);
    EXPECT_EQ(DecodeValidUtf8(text.data()).size, static_cast<int32_t>(text.size()));
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const Utf8Part part = NextUtf8Part(std::string_view(text).substr(0, cut));
      EXPECT_EQ(part.kind, Utf8Part::Kind::kIncomplete);
      EXPECT_EQ(part.size, cut);
    }
  }
}

std::string Utf8procNfc(const std::string& text) {
  utf8proc_uint8_t* out = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &out,
                              static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  EXPECT_GE(n, 0);
  std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(n));
  std::free(out);
  return result;
}

TEST(Unicode, NfcInPartsEqualsNfcOfTheWhole) {
  std::mt19937_64 rng(20261201);
  // Starters, marks of several classes, Hangul, singletons, exclusions, composites.
  const std::vector<char32_t> pool = {
      'a',    'e',     's',    ' ',    0xE9,   0x1E9B, 0x212B, 0x2126, 0x958,  0x915,
      0x93C,  0x301,   0x302,  0x323,  0x327,  0x338,  0x345,  0x1112, 0x1161, 0x11AB,
      0xAC00, 0xD7A3,  0x4E2D, 0xF900, 0xFB01, 0x9BE,  0x9C7,  0xDDC,  0xDCF,  0x1100,
      0x11A8, 0x1D15E, 0x30AB, 0x3099, 0x2ADC, 0x0F73, 0x0344, 0x1F642};
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (size_t n = rng() % 12; n > 0; --n) AppendUtf8(pool[rng() % pool.size()], text);
    bool changed = false;
    const std::string nfc = ToNfc(text, &changed);
    ASSERT_EQ(changed ? nfc : text, Utf8procNfc(text)) << "round " << round;
  }
}

TEST(Unicode, NfcOfManyMarksIsNotQuadratic) {
  std::string text = "a";
  for (int i = 0; i < 100000; ++i) AppendUtf8(i % 2 == 0 ? 0x301 : 0x323, text);
  bool changed = false;
  const std::string nfc = ToNfc(text, &changed);
  EXPECT_TRUE(changed);
  EXPECT_TRUE(nfc.starts_with(Utf8Of({0x1EA1, 0x323})));
}

TEST(Unicode, TextThatIsNfcAlreadyIsNotCopied) {
  for (const char* text : {"", "plain", "caf\u00e9 \u4e2d\u6587 \ud55c\uae00 \U0001f642"}) {
    bool changed = true;
    EXPECT_EQ(ToNfc(text, &changed), "");
    EXPECT_FALSE(changed);
  }
}

TEST(Unicode, FirstInvalidByte) {
  EXPECT_EQ(FirstInvalidUtf8("ab"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("\u00e9\xe2\x82"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("\u00e9\u20ac\x80"), 5u);
  EXPECT_EQ(ReplaceInvalidUtf8("\xf0\x9f\x98 \xed\xa0\x80"), "\ufffd \ufffd\ufffd\ufffd");
}

}  // namespace
}  // namespace quire
