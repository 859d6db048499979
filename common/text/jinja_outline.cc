#include "common/text/jinja_outline.h"

#include <algorithm>

namespace quire {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\v\f";

struct Token {
  bool is_string;
  std::string text;
};

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The string literal at `pos`, which stands on its quote; moves behind it.
std::optional<std::string> ReadString(std::string_view code, size_t& pos) {
  const char quote = code[pos++];
  std::string out;
  while (pos < code.size() && code[pos] != quote) {
    char c = code[pos++];
    if (c == '\\') {
      if (pos == code.size()) return std::nullopt;
      static constexpr std::string_view kFrom = "nrt\\'\"", kTo = "\n\r\t\\'\"";
      const size_t i = kFrom.find(code[pos++]);
      if (i == std::string_view::npos) return std::nullopt;
      c = kTo[i];
    }
    out.push_back(c);
  }
  if (pos == code.size()) return std::nullopt;
  ++pos;
  return out;
}

std::optional<std::vector<Token>> Tokens(std::string_view code) {
  std::vector<Token> tokens;
  for (size_t pos = 0; pos < code.size();) {
    const char c = code[pos];
    if (kBlanks.find(c) != std::string_view::npos) {
      ++pos;
    } else if (c == '\'' || c == '"') {
      std::optional<std::string> text = ReadString(code, pos);
      if (!text.has_value()) return std::nullopt;
      tokens.push_back({true, *std::move(text)});
    } else if (IsNameChar(c)) {
      const size_t begin = pos;
      while (pos < code.size() && IsNameChar(code[pos])) ++pos;
      const std::string name(code.substr(begin, pos - begin));
      // a.b is a['b']
      if (!tokens.empty() && !tokens.back().is_string && tokens.back().text == "." &&
          !(name[0] >= '0' && name[0] <= '9')) {
        tokens.back().text = "[";
        tokens.push_back({true, name});
        tokens.push_back({false, "]"});
      } else {
        tokens.push_back({false, name});
      }
    } else {
      const size_t size = pos + 1 < code.size() && code[pos + 1] == '=' &&
                                  std::string_view("=!<>").find(c) != std::string_view::npos
                              ? 2
                              : 1;
      tokens.push_back({false, std::string(code.substr(pos, size))});
      pos += size;
    }
  }
  return tokens;
}

std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\'' || c == '\\') out.push_back('\\');
      out.push_back(c);
    }
  }
  return out + "'";
}

std::string Joined(const std::vector<Token>& tokens) {
  std::string out;
  bool after_name = false;
  for (const Token& token : tokens) {
    const bool name = !token.is_string && IsNameChar(token.text[0]);
    if (after_name && (name || token.is_string)) out.push_back(' ');
    out += token.is_string ? Quoted(token.text) : token.text;
    // A keyword is told from what it stands before; brackets and operators need no space.
    after_name = name;
  }
  return out;
}

class Outliner {
 public:
  void Text(std::string_view text) {
    if (text.empty()) return;
    if (!steps_.empty() && steps_.back().kind == JinjaStep::Kind::kText) {
      steps_.back().text += text;
    } else {
      steps_.push_back({JinjaStep::Kind::kText, std::string(text)});
    }
  }

  void Value(std::vector<Token> tokens) {
    Rename(tokens);
    std::vector<Token> term;
    int depth = 0;
    const auto give = [&] {
      if (term.size() == 1 && term[0].is_string) {
        Text(term[0].text);
      } else {
        steps_.push_back({JinjaStep::Kind::kValue, Joined(term)});
      }
      term.clear();
    };
    for (Token& token : tokens) {
      if (!token.is_string && (token.text == "(" || token.text == "[")) ++depth;
      if (!token.is_string && (token.text == ")" || token.text == "]")) --depth;
      if (!token.is_string && token.text == "+" && depth == 0) {
        give();
      } else {
        term.push_back(std::move(token));
      }
    }
    give();
  }

  void Block(std::vector<Token> tokens) {
    if (tokens.size() > 3 && tokens[0].text == "for" && tokens[2].text == "in" &&
        !tokens[1].is_string) {
      variable_ = tokens[1].text;
    }
    Rename(tokens);
    steps_.push_back({JinjaStep::Kind::kBlock, Joined(tokens)});
  }

  std::vector<JinjaStep> Take() { return std::move(steps_); }

 private:
  void Rename(std::vector<Token>& tokens) const {
    for (Token& token : tokens) {
      if (!token.is_string && !variable_.empty() && token.text == variable_) token.text = "item";
    }
  }

  std::string variable_;  // of the last loop
  std::vector<JinjaStep> steps_;
};

}  // namespace

std::optional<std::vector<JinjaStep>> JinjaOutline(std::string_view source) {
  if (source.ends_with('\n')) source.remove_suffix(1);
  Outliner outliner;
  bool strip_left = false;    // the tag before ended with a dash
  bool trim_newline = false;  // the tag before was a block or a comment
  for (size_t pos = 0;;) {
    size_t tag = pos;
    while ((tag = source.find('{', tag)) != std::string_view::npos) {
      if (const std::string_view two = source.substr(tag, 2);
          two == "{{" || two == "{%" || two == "{#")
        break;
      ++tag;
    }
    std::string_view text = source.substr(pos, tag == std::string_view::npos ? tag : tag - pos);
    bool at_line_start = pos == 0;
    if (strip_left) {
      text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    } else if (trim_newline && text.starts_with('\n')) {
      text.remove_prefix(1);
      at_line_start = true;
    }
    if (tag == std::string_view::npos) {
      outliner.Text(text);
      return outliner.Take();
    }
    const char kind = source[tag + 1];
    const std::string_view close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    size_t begin = tag + 2;
    if (begin < source.size() && source[begin] == '-') {
      ++begin;
      const size_t last = text.find_last_not_of(kBlanks);
      text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    } else if (kind != '{') {
      const size_t last = text.find_last_not_of(" \t");
      if (last == std::string_view::npos ? at_line_start : text[last] == '\n')
        text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
    }
    outliner.Text(text);
    // The end of the tag: not inside a string.
    size_t end = begin;
    char quote = '\0';
    while (end < source.size()) {
      const char c = source[end];
      if (kind != '#' && quote != '\0') {
        if (c == '\\') ++end;
        if (c == quote) quote = '\0';
      } else if (kind != '#' && (c == '\'' || c == '"')) {
        quote = c;
      } else if (source.substr(end).starts_with(close)) {
        break;
      }
      ++end;
    }
    if (end >= source.size()) return std::nullopt;
    std::string_view code = source.substr(begin, end - begin);
    strip_left = code.ends_with('-');
    if (strip_left) code.remove_suffix(1);
    trim_newline = kind != '{';
    if (kind != '#') {
      std::optional<std::vector<Token>> tokens = Tokens(code);
      if (!tokens.has_value() || tokens->empty()) return std::nullopt;
      if (kind == '{') {
        outliner.Value(*std::move(tokens));
      } else {
        outliner.Block(*std::move(tokens));
      }
    }
    pos = end + 2;
  }
}

}  // namespace quire
