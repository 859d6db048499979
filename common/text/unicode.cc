#include "common/text/unicode.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "common/status_macros.h"

namespace quire {
namespace unicode_internal {
#include "common/text/unicode_tables.inc"
static_assert(kTableLimit == kLimit);
}  // namespace unicode_internal

namespace {

// Canonical decomposition, ordering and composition of a part that holds something NFC may change.
// utf8proc decomposes and composes single passes; its own ordering is quadratic in a run of marks,
// so that step is done here.
void AppendNfcOf(std::string_view part, std::string& out, std::vector<utf8proc_int32_t>& buffer) {
  buffer.clear();
  constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
  for (size_t pos = 0; pos < part.size();) {
    const Utf8Char c = DecodeValidUtf8(part.data() + pos);
    pos += c.size;
    utf8proc_int32_t decomposed[32];  // canonical decompositions have at most 4 characters
    int last_boundclass = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c.value), decomposed, 32, kDecompose, &last_boundclass);
    QUIRE_CHECK(n >= 0 && n <= 32);
    buffer.insert(buffer.end(), decomposed, decomposed + n);
  }
  const auto combining = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (auto it = buffer.begin(); it != buffer.end();) {
    if (combining(*it) == 0) {
      ++it;
      continue;
    }
    const auto run_end =
        std::find_if(it, buffer.end(), [&](utf8proc_int32_t c) { return combining(c) == 0; });
    if (run_end - it > 1) {
      std::stable_sort(it, run_end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
        return combining(a) < combining(b);
      });
    }
    it = run_end;
  }
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(buffer.data(), static_cast<utf8proc_ssize_t>(buffer.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  QUIRE_CHECK(n >= 0);
  for (utf8proc_ssize_t i = 0; i < n; ++i) AppendUtf8(static_cast<char32_t>(buffer[i]), out);
}

}  // namespace

void AppendUtf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

Utf8Part NextUtf8Part(std::string_view bytes) {
  using Kind = Utf8Part::Kind;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {Kind::kValid, 1};
  if (first < 0xC2 || first > 0xF4) return {Kind::kInvalid, 1};
  const size_t need = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte has a narrower range behind E0, ED, F0 and F4 (overlong, surrogates, past the
  // last character).
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < need; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, i};
    const unsigned char b = byte(i);
    const bool fits = i == 1 ? b >= low && b <= high : (b & 0xC0) == 0x80;
    if (!fits) return {Kind::kInvalid, i};
  }
  return {Kind::kValid, need};
}

bool IsValidUtf8(std::string_view bytes) {
  return simdjson::validate_utf8(bytes.data(), bytes.size());
}

size_t FirstInvalidUtf8(std::string_view bytes) {
  if (IsValidUtf8(bytes)) return bytes.size();
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Part part = NextUtf8Part(bytes.substr(pos));
    if (part.kind != Utf8Part::Kind::kValid) break;
    pos += part.size;
  }
  return pos;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string out;
  out.reserve(bytes.size() + 16);
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Part part = NextUtf8Part(bytes.substr(pos));
    if (part.kind == Utf8Part::Kind::kValid) {
      out.append(bytes.substr(pos, part.size));
    } else {
      out.append(kReplacementCharacter);
    }
    pos += part.size;
  }
  return out;
}

std::string ToNfc(std::string_view text, bool* changed) {
  std::string out;
  std::vector<utf8proc_int32_t> buffer;
  size_t copied = 0;     // text[0, copied) is in `out`
  size_t last_safe = 0;  // start of the last character that begins a new normalisation unit
  bool any = false;
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {  // no ASCII character is unsafe
      last_safe = pos++;
      continue;
    }
    const Utf8Char c = DecodeValidUtf8(text.data() + pos);
    if (!NfcUnsafe(c.value)) {
      last_safe = pos;
      pos += c.size;
      continue;
    }
    // [last_safe, end) is a unit of its own: up to the next character that nothing joins to.
    size_t end = pos + c.size;
    while (end < text.size()) {
      const Utf8Char next = DecodeValidUtf8(text.data() + end);
      if (!NfcUnsafe(next.value)) break;
      end += next.size;
    }
    any = true;
    const size_t begin = std::max(last_safe, copied);
    out.append(text.substr(copied, begin - copied));
    AppendNfcOf(text.substr(begin, end - begin), out, buffer);
    copied = end;
    last_safe = end;
    pos = end;
  }
  *changed = any;
  if (any) out.append(text.substr(copied));
  return out;
}

}  // namespace quire
