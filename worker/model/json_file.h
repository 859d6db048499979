// JSON files of a model directory: bounded in size and nesting, no key twice, errors that name file
// and field. The files are untrusted.
#ifndef QUIRE_WORKER_MODEL_JSON_FILE_H_
#define QUIRE_WORKER_MODEL_JSON_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace quire {

inline constexpr int64_t kMaxConfigBytes = 1 << 20;      // real ones have a few KiB
inline constexpr int64_t kMaxIndexBytes = 4 << 20;       // 40,000 tensors
inline constexpr int64_t kMaxTokenizerBytes = 64 << 20;  // the largest known has 33 MB

// Errors: NOT_FOUND; INVALID_ARGUMENT naming file, size and limit.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

// The object in `text`. Errors: INVALID_ARGUMENT naming `origin` and the place.
absl::StatusOr<std::unique_ptr<nlohmann::json>> ParseJsonObject(std::string_view text,
                                                                const std::string& origin);
absl::StatusOr<std::unique_ptr<nlohmann::json>> ReadJsonFile(const std::string& path,
                                                             int64_t max_bytes);

// The object in `text` ("" = an empty one) with the text `value` for `key`, as JSON again.
absl::StatusOr<std::string> WithStringField(std::string_view text, const std::string& origin,
                                            const std::string& key, const std::string& value);

// Fields of one JSON object. null counts as absent, everywhere. A value of the wrong type or out of
// range is INVALID_ARGUMENT naming file, field, value and limit. Borrows the object.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string origin, std::string prefix = "")
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

  const nlohmann::json* Find(const std::string& key) const;  // null if absent
  absl::StatusOr<std::optional<int64_t>> Int(const std::string& key, int64_t min,
                                             int64_t max) const;
  absl::StatusOr<std::optional<double>> Double(const std::string& key, double min,
                                               double max) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& key) const;
  absl::StatusOr<std::optional<std::string>> String(const std::string& key) const;

  // INVALID_ARGUMENT "origin: prefix.key is VALUE, must be WANTED".
  absl::Status Wrong(const std::string& key, const std::string& wanted) const;
  absl::Status Missing(const std::string& key) const;
  absl::Status NotSupported(const std::string& key) const;  // UNIMPLEMENTED with the value
  const std::string& origin() const { return origin_; }

 private:
  const nlohmann::json& object_;
  const std::string origin_, prefix_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_JSON_FILE_H_
