#include "common/text/python_json.h"

#include <charconv>
#include <cmath>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/text/unicode.h"

namespace quire {
namespace {

constexpr int kMaxDepth = 200;  // reading and writing recurse once a level

// repr(float): the shortest digits that read back equal, as 1e-07, 0.1, 1.0 or 1e+16.
std::string PythonFloat(double value) {
  char digits_text[64];
  const auto end = std::to_chars(digits_text, digits_text + sizeof(digits_text), value,
                                 std::chars_format::scientific)
                       .ptr;
  std::string_view text(digits_text, static_cast<size_t>(end - digits_text));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const char* exponent_begin = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (num_digits > 1) out += "." + digits.substr(1);
    const int magnitude = std::abs(exponent);
    absl::StrAppend(&out, exponent < 0 ? "e-" : "e+", magnitude < 10 ? "0" : "", magnitude);
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (exponent + 1 >= num_digits) {
    out += digits + std::string(static_cast<size_t>(exponent + 1 - num_digits), '0') + ".0";
  } else {
    out += digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
           digits.substr(static_cast<size_t>(exponent + 1));
  }
  return out;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& field) : text_(text), field_(field) {}

  absl::StatusOr<JsonValue> Run() {
    if (const size_t bad = FirstInvalidUtf8(text_); bad != text_.size()) {
      pos_ = bad;
      return Error("malformed UTF-8");
    }
    JsonValue value;
    RETURN_IF_ERROR(Value(value, 0));
    SkipBlanks();
    if (pos_ != text_.size()) return Error("something follows the value");
    return value;
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(field_, " is no JSON: ", what, " at byte ", pos_, " of ", text_.size()));
  }
  void SkipBlanks() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\n' ||
                                   text_[pos_] == '\r' || text_[pos_] == '\t')) {
      ++pos_;
    }
  }
  char Peek() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }
  bool Take(char c) {
    if (Peek() != c || pos_ >= text_.size()) return false;
    ++pos_;
    return true;
  }
  absl::Status Word(std::string_view word, JsonValue::Kind kind, JsonValue& value) {
    if (!text_.substr(pos_).starts_with(word)) return Error("unexpected character");
    pos_ += word.size();
    value.kind = kind;
    return absl::OkStatus();
  }

  absl::Status Value(JsonValue& value, int depth) {
    if (depth > kMaxDepth) return Error(absl::StrCat("more than ", kMaxDepth, " levels"));
    SkipBlanks();
    switch (Peek()) {
      case '{':
        return Object(value, depth);
      case '[':
        return Array(value, depth);
      case '"':
        value.kind = JsonValue::Kind::kString;
        return String(value.text);
      case 't':
        return Word("true", JsonValue::Kind::kTrue, value);
      case 'f':
        return Word("false", JsonValue::Kind::kFalse, value);
      case 'n':
        return Word("null", JsonValue::Kind::kNull, value);
      default:
        return Number(value);
    }
  }

  absl::Status Object(JsonValue& value, int depth) {
    value.kind = JsonValue::Kind::kObject;
    ++pos_;
    SkipBlanks();
    if (Take('}')) return absl::OkStatus();
    std::unordered_map<std::string, size_t> places;
    for (;;) {
      SkipBlanks();
      if (Peek() != '"') return Error("a key is missing");
      std::string key;
      RETURN_IF_ERROR(String(key));
      SkipBlanks();
      if (!Take(':')) return Error("':' is missing");
      const auto [it, is_new] = places.emplace(key, value.members.size());
      if (is_new) value.members.emplace_back(std::move(key), JsonValue());
      JsonValue member;
      RETURN_IF_ERROR(Value(member, depth + 1));
      value.members[it->second].second = std::move(member);
      SkipBlanks();
      if (Take('}')) return absl::OkStatus();
      if (!Take(',')) return Error("',' or '}' is missing");
    }
  }

  absl::Status Array(JsonValue& value, int depth) {
    value.kind = JsonValue::Kind::kArray;
    ++pos_;
    SkipBlanks();
    if (Take(']')) return absl::OkStatus();
    for (;;) {
      RETURN_IF_ERROR(Value(value.items.emplace_back(), depth + 1));
      SkipBlanks();
      if (Take(']')) return absl::OkStatus();
      if (!Take(',')) return Error("',' or ']' is missing");
    }
  }

  absl::Status Hex4(uint32_t& code) {
    code = 0;
    for (int i = 0; i < 4; ++i, ++pos_) {
      const char c = Peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return Error("\\u without four hexadecimal digits");
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return absl::OkStatus();
  }

  absl::Status Escape(std::string& out) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const char c = Peek();
    if (const size_t i = kFrom.find(c); pos_ < text_.size() && i != std::string_view::npos) {
      ++pos_;
      out.push_back(kTo[i]);
      return absl::OkStatus();
    }
    if (!Take('u')) return Error("unknown escape");
    uint32_t code = 0;
    RETURN_IF_ERROR(Hex4(code));
    if (code >= 0xD800 && code < 0xDC00) {
      uint32_t low = 0;
      if (!Take('\\') || !Take('u')) return Error("half a surrogate pair");
      RETURN_IF_ERROR(Hex4(low));
      if (low < 0xDC00 || low > 0xDFFF) return Error("half a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return Error("half a surrogate pair");
    }
    AppendUtf8(code, out);
    return absl::OkStatus();
  }

  absl::Status String(std::string& out) {
    ++pos_;
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '"') {
        ++pos_;
        return absl::OkStatus();
      }
      if (static_cast<unsigned char>(c) < 0x20) return Error("control character in a string");
      ++pos_;
      if (c != '\\') {
        out.push_back(c);
      } else {
        RETURN_IF_ERROR(Escape(out));
      }
    }
    return Error("a string does not end");
  }

  size_t Digits() {
    const size_t begin = pos_;
    while (Peek() >= '0' && Peek() <= '9') ++pos_;
    return pos_ - begin;
  }

  absl::Status Number(JsonValue& value) {
    const size_t begin = pos_;
    Take('-');
    const bool leading_zero = Peek() == '0';
    const size_t digits = Digits();
    if (digits == 0) return Error("unexpected character");
    if (leading_zero && digits > 1) return Error("a number starts with 0");
    bool is_float = false;
    if (Take('.')) {
      is_float = true;
      if (Digits() == 0) return Error("no digits behind '.'");
    }
    if (Peek() == 'e' || Peek() == 'E') {
      is_float = true;
      ++pos_;
      if (!Take('+')) Take('-');
      if (Digits() == 0) return Error("no digits in an exponent");
    }
    const std::string_view spelled = text_.substr(begin, pos_ - begin);
    value.kind = JsonValue::Kind::kNumber;
    if (!is_float) {
      value.text = spelled == "-0" ? "0" : spelled;
      return absl::OkStatus();
    }
    double number = 0;
    const auto result = std::from_chars(spelled.data(), spelled.data() + spelled.size(), number);
    if (result.ec == std::errc::result_out_of_range) {
      // Too small is zero, as in Python; too large would be Infinity, which is no JSON.
      const size_t e = spelled.find_first_of("eE");
      const bool tiny = e != std::string_view::npos && spelled[e + 1] == '-';
      if (!tiny) return Error("a number out of range");
      number = spelled[0] == '-' ? -0.0 : 0.0;
    }
    if (!std::isfinite(number)) return Error("a number out of range");
    value.text = PythonFloat(number);
    return absl::OkStatus();
  }

  std::string_view text_;
  const std::string& field_;
  size_t pos_ = 0;
};

void DumpString(const std::string& text, std::string& out) {
  out.push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppend(&out, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

void Dump(const JsonValue& value, int indent, int level, std::string& out) {
  const auto new_line = [&](int at) {
    if (indent < 0) return;
    out.push_back('\n');
    out.append(static_cast<size_t>(indent * at), ' ');
  };
  const absl::string_view separator = indent < 0 ? ", " : ",";
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      out += "null";
      return;
    case JsonValue::Kind::kFalse:
      out += "false";
      return;
    case JsonValue::Kind::kTrue:
      out += "true";
      return;
    case JsonValue::Kind::kNumber:
      out += value.text;
      return;
    case JsonValue::Kind::kString:
      return DumpString(value.text, out);
    case JsonValue::Kind::kArray:
      out.push_back('[');
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) absl::StrAppend(&out, separator);
        new_line(level + 1);
        Dump(value.items[i], indent, level + 1, out);
      }
      if (!value.items.empty()) new_line(level);
      out.push_back(']');
      return;
    case JsonValue::Kind::kObject:
      out.push_back('{');
      for (size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) absl::StrAppend(&out, separator);
        new_line(level + 1);
        DumpString(value.members[i].first, out);
        out += ": ";
        Dump(value.members[i].second, indent, level + 1, out);
      }
      if (!value.members.empty()) new_line(level);
      out.push_back('}');
      return;
  }
}

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

absl::StatusOr<JsonValue> ParseJson(std::string_view text, const std::string& field) {
  return Parser(text, field).Run();
}

std::string PythonDumps(const JsonValue& value, int indent) {
  std::string out;
  Dump(value, indent, 0, out);
  return out;
}

}  // namespace quire
