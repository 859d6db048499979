#include "worker/model/json_file.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/memory.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/model/tensor_files.h"

namespace quire {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  if (static_cast<int64_t>(bytes.size()) > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes.size(), " bytes, the limit is ", max_bytes));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::StatusOr<std::unique_ptr<json>> ParseJsonObject(std::string_view text,
                                                      const std::string& origin) {
  std::string error;
  std::vector<std::set<std::string>> keys;  // of the open objects
  const json::parser_callback_t check = [&](int depth, json::parse_event_t event, json& value) {
    if (!error.empty()) return false;
    if (depth > kMaxDepth) {
      error = absl::StrCat("nested deeper than ", kMaxDepth);
      return false;
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) error = absl::StrCat("key ", Quoted(key), " twice");
    }
    return error.empty();
  };
  auto parsed = std::make_unique<json>();
  try {
    *parsed = json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& e) {
    if (error.empty()) error = absl::StrCat("JSON is broken: ", Quoted(e.what()));
  }
  if (error.empty() && !parsed->is_object()) error = "is no JSON object";
  if (!error.empty()) return absl::InvalidArgumentError(absl::StrCat(origin, ": ", error));
  return parsed;
}

absl::StatusOr<std::unique_ptr<json>> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, max_bytes));
  return ParseJsonObject(text, path);
}

absl::StatusOr<std::string> WithStringField(std::string_view text, const std::string& origin,
                                            const std::string& key, const std::string& value) {
  ASSIGN_OR_RETURN(const auto object, ParseJsonObject(text.empty() ? "{}" : text, origin));
  (*object)[key] = value;
  return object->dump(-1, ' ', false, json::error_handler_t::replace);
}

const json* JsonFields::Find(const std::string& key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status JsonFields::Wrong(const std::string& key, const std::string& wanted) const {
  const json* value = Find(key);
  const std::string shown =
      value == nullptr ? "absent"
                       : value->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 100);
  return absl::InvalidArgumentError(
      absl::StrCat(origin_, ": ", prefix_, key, " is ", shown, ", must be ", wanted));
}

absl::Status JsonFields::Missing(const std::string& key) const {
  return absl::InvalidArgumentError(absl::StrCat(origin_, ": ", prefix_, key, " is missing"));
}

absl::Status JsonFields::NotSupported(const std::string& key) const {
  const json* value = Find(key);
  return absl::UnimplementedError(absl::StrCat(
      origin_, ": ", prefix_, key, " ",
      value == nullptr ? "absent"
                       : value->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 100),
      " is not supported"));
}

absl::StatusOr<std::optional<int64_t>> JsonFields::Int(const std::string& key, int64_t min,
                                                       int64_t max) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string wanted = absl::StrCat("an integer in [", min, ", ", max, "]");
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const auto wide = value->get<uint64_t>();
    if (wide > static_cast<uint64_t>(INT64_MAX)) return Wrong(key, wanted);
    number = static_cast<int64_t>(wide);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {  // 8192.0: some tools write whole numbers so
    const double wide = value->get<double>();
    if (std::floor(wide) != wide || std::fabs(wide) > 1e15) return Wrong(key, wanted);
    number = static_cast<int64_t>(wide);
  } else {
    return Wrong(key, wanted);
  }
  if (number < min || number > max) return Wrong(key, wanted);
  return number;
}

absl::StatusOr<std::optional<double>> JsonFields::Double(const std::string& key, double min,
                                                         double max) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string wanted = absl::StrCat("a number in [", min, ", ", max, "]");
  if (!value->is_number()) return Wrong(key, wanted);
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) return Wrong(key, wanted);
  return number;
}

absl::StatusOr<std::optional<bool>> JsonFields::Bool(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Wrong(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> JsonFields::String(const std::string& key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Wrong(key, "a string");
  return value->get<std::string>();
}

}  // namespace quire
