// The outline of a chat template: its statements in one canonical spelling, so that two texts of
// the same template are recognised as equal. Nothing is ever evaluated.
//
// Canonical means: white space resolved as the reference does (trim_blocks, lstrip_blocks, the
// dashes of {%- -%}); comments gone; m.role written m['role']; strings unescaped; an output that is
// a sum cut into one output a term, and neighbouring literal outputs joined; loop variables
// renamed.
#ifndef QUIRE_COMMON_TEXT_JINJA_OUTLINE_H_
#define QUIRE_COMMON_TEXT_JINJA_OUTLINE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct JinjaStep {
  enum class Kind {
    kText,   // gives out `text` as it stands
    kValue,  // gives out the value of the expression `text`
    kBlock,  // {% text %}
  };
  Kind kind;
  std::string text;
  bool operator==(const JinjaStep&) const = default;
};

// nullopt if `source` is not of the simple kind that this reads (unclosed tags, unknown escapes).
std::optional<std::vector<JinjaStep>> JinjaOutline(std::string_view source);

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_JINJA_OUTLINE_H_
