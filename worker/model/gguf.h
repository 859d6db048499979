// Reader of GGUF version 3 files: metadata and tensor table; the bytes stay mapped.
//
// The file is untrusted. Every count and length is compared with the bytes that are left before it
// is used, so a short file can cost neither time nor memory; strings are views into the mapping.
// Names and keys are unique, the alignment is a power of two, and no range leaves the file or
// overlaps another. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef QUIRE_WORKER_MODEL_GGUF_H_
#define QUIRE_WORKER_MODEL_GGUF_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/tensor_files.h"

namespace quire {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

struct GgufValue {
  GgufType type = GgufType::kU8;
  int64_t integer = 0;    // of an integer type or kBool; U64 above INT64_MAX reads as INT64_MAX
  double number = 0;      // of kF32 and kF64
  std::string_view text;  // of kString; of kArray: the bytes of its elements
  GgufType element = GgufType::kU8;  // of kArray
  int64_t count = 0;                 // of kArray
};

struct GgufFile {
  TensorFiles files;  // shapes are reversed: outermost first
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::string path;

  const GgufValue* Find(std::string_view key) const;  // null if absent

  // Absent = nothing. Errors: INVALID_ARGUMENT naming file, key, value or type, and limit.
  absl::StatusOr<std::optional<int64_t>> Int(const std::string& key, int64_t min,
                                             int64_t max) const;
  absl::StatusOr<std::optional<double>> Double(const std::string& key, double min,
                                               double max) const;
  absl::StatusOr<std::optional<bool>> Bool(const std::string& key) const;
  absl::StatusOr<std::optional<std::string>> String(const std::string& key) const;
  absl::StatusOr<std::vector<std::string>> Strings(const std::string& key) const;
  absl::StatusOr<std::vector<int32_t>> Ints(const std::string& key) const;
};

// Errors: NOT_FOUND; INVALID_ARGUMENT naming file, key or tensor, value and limit; UNIMPLEMENTED
// for other versions and for the parts of a split file.
absl::StatusOr<GgufFile> OpenGguf(const std::string& path);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_GGUF_H_
