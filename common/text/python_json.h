// JSON as chat templates see it: read with the order of keys and the spelling of numbers kept,
// written as Python's json.dumps(value, ensure_ascii=False), which is what tojson means in these
// templates.
#ifndef QUIRE_COMMON_TEXT_PYTHON_JSON_H_
#define QUIRE_COMMON_TEXT_PYTHON_JSON_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

struct JsonValue {
  enum class Kind { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  std::string text;              // a string's characters; a number as Python prints it
  std::vector<JsonValue> items;  // an array's
  std::vector<std::pair<std::string, JsonValue>> members;  // an object's, keys unique

  const JsonValue* Find(std::string_view key) const;  // null if this is no object or lacks the key
};

// `field` names the text in messages. Numbers: integers of any size, floats as Python's repr. Of
// equal keys the last value counts, at the place of the first, as in a Python dict.
// Errors: INVALID_ARGUMENT naming field, byte offset and what is wrong (nesting is limited).
absl::StatusOr<JsonValue> ParseJson(std::string_view text, const std::string& field);

// indent < 0: one line with ", " and ": "; else as json.dumps(indent=indent).
std::string PythonDumps(const JsonValue& value, int indent = -1);

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_PYTHON_JSON_H_
