#include "worker/model/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace quire {
namespace {

constexpr int64_t kMaxKeys = 100'000;  // real files have below 100; bounds memory
constexpr int64_t kMaxTensors = 200'000;
constexpr int64_t kMaxNameBytes = 65'535;  // the format's limit for keys
constexpr int64_t kMaxDimensions = 4;
constexpr int kMaxArrayDepth = 4;
constexpr int64_t kMaxAlignment = 1 << 16;

struct GgmlType {
  uint32_t id;
  TensorTypeInfo info;
};
constexpr GgmlType kTensorTypes[] = {
    {0, {TensorType::kF32, "F32", 1, 4}},           {1, {TensorType::kF16, "F16", 1, 2}},
    {2, {TensorType::kQ4_0, "Q4_0", 32, 18}},       {3, {TensorType::kQ4_1, "Q4_1", 32, 20}},
    {6, {TensorType::kQ5_0, "Q5_0", 32, 22}},       {7, {TensorType::kQ5_1, "Q5_1", 32, 24}},
    {8, {TensorType::kQ8_0, "Q8_0", 32, 34}},       {9, {TensorType::kOther, "Q8_1", 32, 36}},
    {10, {TensorType::kOther, "Q2_K", 256, 84}},    {11, {TensorType::kOther, "Q3_K", 256, 110}},
    {12, {TensorType::kQ4K, "Q4_K", 256, 144}},     {13, {TensorType::kQ5K, "Q5_K", 256, 176}},
    {14, {TensorType::kQ6K, "Q6_K", 256, 210}},     {15, {TensorType::kOther, "Q8_K", 256, 292}},
    {16, {TensorType::kOther, "IQ2_XXS", 256, 66}}, {17, {TensorType::kOther, "IQ2_XS", 256, 74}},
    {18, {TensorType::kOther, "IQ3_XXS", 256, 98}}, {19, {TensorType::kOther, "IQ1_S", 256, 50}},
    {20, {TensorType::kOther, "IQ4_NL", 32, 18}},   {21, {TensorType::kOther, "IQ3_S", 256, 110}},
    {22, {TensorType::kOther, "IQ2_S", 256, 82}},   {23, {TensorType::kOther, "IQ4_XS", 256, 136}},
    {24, {TensorType::kOther, "I8", 1, 1}},         {25, {TensorType::kOther, "I16", 1, 2}},
    {26, {TensorType::kOther, "I32", 1, 4}},        {27, {TensorType::kOther, "I64", 1, 8}},
    {28, {TensorType::kOther, "F64", 1, 8}},        {29, {TensorType::kOther, "IQ1_M", 256, 56}},
    {30, {TensorType::kBf16, "BF16", 1, 2}},        {34, {TensorType::kOther, "TQ1_0", 256, 54}},
    {35, {TensorType::kOther, "TQ2_0", 256, 66}},   {39, {TensorType::kOther, "MXFP4", 32, 17}},
};

// Bytes of a value of a fixed-size type, 0 for strings and arrays, -1 for what is no type.
int FixedBytes(uint32_t type) {
  constexpr int8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : -1;
}

// Reads the file front to back; never past its end.
class Cursor {
 public:
  Cursor(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}

  int64_t position() const { return position_; }
  int64_t left() const { return static_cast<int64_t>(bytes_.size()) - position_; }
  std::string_view Slice(int64_t begin, int64_t end) const {
    return bytes_.substr(begin, end - begin);
  }

  absl::Status Fail(const std::string& what, const std::string& message) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", what, ": ", message, " (at byte ", position_, ")"));
  }
  absl::Status Need(int64_t count, const std::string& what) const {
    if (count <= left()) return absl::OkStatus();
    return Fail(what, absl::StrCat("needs ", count, " bytes, ", left(), " are left"));
  }
  // `count` things of at least `min_bytes` each: they must fit into what is left, and the limit.
  absl::StatusOr<int64_t> Count(int64_t min_bytes, int64_t limit, const std::string& what) {
    ASSIGN_OR_RETURN(const uint64_t count, Read<uint64_t>(what));
    const int64_t most = std::min(limit, left() / min_bytes);
    if (count > static_cast<uint64_t>(most)) {
      return Fail(what, absl::StrCat("is ", count, ", the limit is ", most, " with ", left(),
                                     " bytes left in the file"));
    }
    return static_cast<int64_t>(count);
  }
  template <class T>
  absl::StatusOr<T> Read(const std::string& what) {
    RETURN_IF_ERROR(Need(sizeof(T), what));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  absl::StatusOr<std::string_view> String(int64_t limit, const std::string& what) {
    ASSIGN_OR_RETURN(const int64_t size, Count(1, limit, absl::StrCat(what, " length")));
    position_ += size;
    return bytes_.substr(position_ - size, size);
  }
  absl::Status Skip(int64_t count, const std::string& what) {
    RETURN_IF_ERROR(Need(count, what));
    position_ += count;
    return absl::OkStatus();
  }

 private:
  const std::string& path_;
  const std::string_view bytes_;
  int64_t position_ = 0;
};

absl::Status CheckType(const Cursor& cursor, uint32_t type, const std::string& what) {
  if (FixedBytes(type) >= 0) return absl::OkStatus();
  return cursor.Fail(what, absl::StrCat("value type is ", type, ", the largest known is 12"));
}

// Walks over an array behind its type; fills element type, count and bytes of `value`.
absl::Status SkipArray(Cursor& cursor, const std::string& what, int depth, GgufValue* value) {
  if (depth > kMaxArrayDepth) {
    return cursor.Fail(what, absl::StrCat("arrays nested deeper than ", kMaxArrayDepth));
  }
  ASSIGN_OR_RETURN(const uint32_t element, cursor.Read<uint32_t>(what));
  RETURN_IF_ERROR(CheckType(cursor, element, what));
  const int fixed = FixedBytes(element);
  const bool is_string = element == static_cast<uint32_t>(GgufType::kString);
  const int64_t min_bytes = fixed > 0 ? fixed : is_string ? 8 : 12;
  ASSIGN_OR_RETURN(const int64_t count, cursor.Count(min_bytes, std::numeric_limits<int64_t>::max(),
                                                     absl::StrCat(what, " array count")));
  const int64_t begin = cursor.position();
  if (fixed > 0) {
    RETURN_IF_ERROR(cursor.Skip(count * fixed, what));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      if (is_string) {
        RETURN_IF_ERROR(cursor.String(cursor.left(), what).status());
      } else {
        RETURN_IF_ERROR(SkipArray(cursor, what, depth + 1, nullptr));
      }
    }
  }
  if (value != nullptr) {
    value->element = static_cast<GgufType>(element);
    value->count = count;
    value->text = cursor.Slice(begin, cursor.position());
  }
  return absl::OkStatus();
}

template <class T>
absl::Status ReadInteger(Cursor& cursor, const std::string& what, GgufValue* value) {
  ASSIGN_OR_RETURN(const T raw, cursor.Read<T>(what));
  value->integer = std::is_same_v<T, uint64_t> && raw > static_cast<T>(INT64_MAX)
                       ? INT64_MAX
                       : static_cast<int64_t>(raw);
  return absl::OkStatus();
}

absl::Status ReadValue(Cursor& cursor, const std::string& what, GgufValue* value) {
  ASSIGN_OR_RETURN(const uint32_t type, cursor.Read<uint32_t>(what));
  RETURN_IF_ERROR(CheckType(cursor, type, what));
  value->type = static_cast<GgufType>(type);
  switch (value->type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return ReadInteger<uint8_t>(cursor, what, value);
    case GgufType::kI8:
      return ReadInteger<int8_t>(cursor, what, value);
    case GgufType::kU16:
      return ReadInteger<uint16_t>(cursor, what, value);
    case GgufType::kI16:
      return ReadInteger<int16_t>(cursor, what, value);
    case GgufType::kU32:
      return ReadInteger<uint32_t>(cursor, what, value);
    case GgufType::kI32:
      return ReadInteger<int32_t>(cursor, what, value);
    case GgufType::kU64:
      return ReadInteger<uint64_t>(cursor, what, value);
    case GgufType::kI64:
      return ReadInteger<int64_t>(cursor, what, value);
    case GgufType::kF32: {
      ASSIGN_OR_RETURN(value->number, cursor.Read<float>(what));
      return absl::OkStatus();
    }
    case GgufType::kF64: {
      ASSIGN_OR_RETURN(value->number, cursor.Read<double>(what));
      return absl::OkStatus();
    }
    case GgufType::kString: {
      ASSIGN_OR_RETURN(value->text, cursor.String(cursor.left(), what));
      return absl::OkStatus();
    }
    case GgufType::kArray:
      return SkipArray(cursor, what, 1, value);
  }
  return absl::OkStatus();
}

absl::Status ReadMetadata(Cursor& cursor, int64_t num_keys, GgufFile* file) {
  for (int64_t i = 0; i < num_keys; ++i) {
    ASSIGN_OR_RETURN(const std::string_view key,
                     cursor.String(kMaxNameBytes, absl::StrCat("metadata key ", i)));
    const std::string what = absl::StrCat("key ", Quoted(key));
    GgufValue value;
    RETURN_IF_ERROR(ReadValue(cursor, what, &value));
    if (!file->metadata.emplace(std::string(key), value).second) {
      return cursor.Fail(what, "is there twice");
    }
  }
  return absl::OkStatus();
}

// One entry of the tensor table; its offset still counts from the start of the data.
absl::StatusOr<TensorInfo> ReadTensorInfo(Cursor& cursor, int64_t index) {
  ASSIGN_OR_RETURN(const std::string_view name,
                   cursor.String(kMaxNameBytes, absl::StrCat("tensor name ", index)));
  TensorInfo tensor;
  tensor.name = std::string(name);
  const std::string what = absl::StrCat("tensor ", Quoted(name));
  ASSIGN_OR_RETURN(const uint32_t num_dimensions, cursor.Read<uint32_t>(what));
  if (num_dimensions > kMaxDimensions) {
    return cursor.Fail(
        what, absl::StrCat("has ", num_dimensions, " dimensions, the limit is ", kMaxDimensions));
  }
  for (uint32_t d = 0; d < num_dimensions; ++d) {
    ASSIGN_OR_RETURN(const uint64_t size, cursor.Read<uint64_t>(what));
    if (size > static_cast<uint64_t>(INT64_MAX)) {
      return cursor.Fail(what,
                         absl::StrCat("dimension ", d, " is ", size, ", the limit is 2^63-1"));
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  ASSIGN_OR_RETURN(const uint32_t type_id, cursor.Read<uint32_t>(what));
  const auto type = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                 [&](const GgmlType& t) { return t.id == type_id; });
  if (type == std::end(kTensorTypes)) {
    return cursor.Fail(what, absl::StrCat("has the unknown type ", type_id));
  }
  tensor.type = type->info;
  ASSIGN_OR_RETURN(const uint64_t offset, cursor.Read<uint64_t>(what));
  int64_t bytes = 0;
  if (!TensorBytes(tensor.type, tensor.shape, &bytes)) {
    return cursor.Fail(
        what,
        absl::StrCat("shape ", ShapeString(tensor.shape), " of ", tensor.type.name,
                     " is too large or no whole number of blocks of ", tensor.type.block_elements));
  }
  if (offset > (uint64_t{1} << 62)) {
    return cursor.Fail(what, absl::StrCat("offset is ", offset, ", the limit is 2^62"));
  }
  tensor.begin = static_cast<int64_t>(offset);
  tensor.end = tensor.begin + bytes;  // both at most 2^62
  return tensor;
}

absl::Status CheckRanges(const std::string& path, std::vector<TensorInfo>& tensors,
                         int64_t data_bytes, int64_t alignment) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    const std::string what = absl::StrCat(path, ": tensor ", Quoted(t.name), ": offset ", t.begin);
    if (t.begin % alignment != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " is no multiple of general.alignment, ", alignment));
    }
    if (t.end > data_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(what, " + ", t.size_bytes(),
                                                     " bytes end past the file's ", data_bytes,
                                                     " bytes of data"));
    }
    if (previous != nullptr && t.begin < previous->end) {
      return absl::InvalidArgumentError(absl::StrCat(what, " overlaps ", Quoted(previous->name),
                                                     ", which ends at ", previous->end));
    }
    if (t.size_bytes() > 0) previous = &t;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufFile> OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  static_assert(std::endian::native == std::endian::little);
  const std::string_view bytes(reinterpret_cast<const char*>(mapped.bytes().data()),
                               mapped.bytes().size());
  Cursor cursor(path, bytes);
  if (bytes.substr(0, 4) != "GGUF") {
    return absl::InvalidArgumentError(absl::StrCat(path, ": magic is ", Quoted(bytes.substr(0, 4)),
                                                   ", a GGUF file starts with \"GGUF\""));
  }
  RETURN_IF_ERROR(cursor.Skip(4, "magic"));
  ASSIGN_OR_RETURN(const uint32_t version, cursor.Read<uint32_t>("version"));
  if (version != 3) {
    return absl::UnimplementedError(absl::StrCat(path, ": GGUF version ", version,
                                                 " is not supported, only 3 (little-endian)"));
  }
  GgufFile file;
  file.path = path;
  // A tensor takes at least 24 bytes of the table (name length, dimensions, type, offset), a key at
  // least 13 (length, type, one byte).
  ASSIGN_OR_RETURN(const int64_t num_tensors, cursor.Count(24, kMaxTensors, "tensor count"));
  ASSIGN_OR_RETURN(const int64_t num_keys, cursor.Count(13, kMaxKeys, "metadata count"));
  RETURN_IF_ERROR(ReadMetadata(cursor, num_keys, &file));
  ASSIGN_OR_RETURN(const auto num_parts, file.Int("split.count", 0, 65'535));
  if (num_parts.value_or(1) > 1) {
    return absl::UnimplementedError(absl::StrCat(
        path, ": split.count is ", *num_parts, ": split GGUF files are not supported, join them"));
  }
  ASSIGN_OR_RETURN(const auto given_alignment, file.Int("general.alignment", 1, kMaxAlignment));
  const int64_t alignment = given_alignment.value_or(32);
  if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": general.alignment is ", alignment,
                                                   ", must be a power of two, at most ",
                                                   kMaxAlignment));
  }

  std::vector<TensorInfo> tensors;
  for (int64_t i = 0; i < num_tensors; ++i) {
    ASSIGN_OR_RETURN(TensorInfo tensor, ReadTensorInfo(cursor, i));
    tensors.push_back(std::move(tensor));
  }
  const int64_t data_begin = (cursor.position() + alignment - 1) / alignment * alignment;
  const int64_t data_bytes = std::max<int64_t>(0, static_cast<int64_t>(bytes.size()) - data_begin);
  // Names first: the ranges of a repeated tensor overlap, and the name says more.
  for (const TensorInfo& t : tensors) {
    if (!file.files.tensors.emplace(t.name, TensorInfo()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", Quoted(t.name), " is there twice"));
    }
  }
  RETURN_IF_ERROR(CheckRanges(path, tensors, data_bytes, alignment));
  for (TensorInfo& t : tensors) {
    t.begin += data_begin;
    t.end += data_begin;
    file.files.tensors.find(t.name)->second = t;
  }
  file.files.files.push_back(std::move(mapped));
  return file;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = metadata.find(key);
  return it == metadata.end() ? nullptr : &it->second;
}

namespace {

bool IsInteger(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool &&
         type != GgufType::kString && type != GgufType::kArray;
}

absl::Status WrongType(const GgufFile& file, const std::string& key, const std::string& wanted) {
  const GgufValue* value = file.Find(key);
  return absl::InvalidArgumentError(absl::StrCat(
      file.path, ": key ", Quoted(key), " has value type ", static_cast<uint32_t>(value->type),
      value->type == GgufType::kArray ? absl::StrCat(" of ", static_cast<uint32_t>(value->element))
                                      : "",
      ", must be ", wanted));
}

}  // namespace

absl::StatusOr<std::optional<int64_t>> GgufFile::Int(const std::string& key, int64_t min,
                                                     int64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!IsInteger(value->type)) return WrongType(*this, key, "an integer");
  if (value->integer < min || value->integer > max) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": key ", Quoted(key), " is ",
                                                   value->integer, ", must be in [", min, ", ", max,
                                                   "]"));
  }
  return value->integer;
}

absl::StatusOr<std::optional<double>> GgufFile::Double(const std::string& key, double min,
                                                       double max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!IsInteger(value->type) && value->type != GgufType::kF32 && value->type != GgufType::kF64) {
    return WrongType(*this, key, "a number");
  }
  const double number =
      IsInteger(value->type) ? static_cast<double>(value->integer) : value->number;
  if (!(number >= min && number <= max)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": key ", Quoted(key), " is ", number,
                                                   ", must be in [", min, ", ", max, "]"));
  }
  return number;
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kBool) return WrongType(*this, key, "a boolean");
  return value->integer != 0;
}

absl::StatusOr<std::optional<std::string>> GgufFile::String(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kString) return WrongType(*this, key, "a string");
  return std::string(value->text);
}

absl::StatusOr<std::vector<std::string>> GgufFile::Strings(const std::string& key) const {
  std::vector<std::string> strings;
  const GgufValue* value = Find(key);
  if (value == nullptr) return strings;
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return WrongType(*this, key, "an array of strings");
  }
  constexpr int64_t kMaxStrings = 8 << 20;  // bounds memory: an empty one takes 32 bytes
  if (value->count > kMaxStrings) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": key ", Quoted(key), " has ",
                                                   value->count, " entries, the limit is ",
                                                   kMaxStrings));
  }
  strings.reserve(value->count);
  Cursor cursor(path, value->text);
  for (int64_t i = 0; i < value->count; ++i) {
    ASSIGN_OR_RETURN(const std::string_view text, cursor.String(cursor.left(), key));
    strings.emplace_back(text);
  }
  return strings;
}

absl::StatusOr<std::vector<int32_t>> GgufFile::Ints(const std::string& key) const {
  std::vector<int32_t> ints;
  const GgufValue* value = Find(key);
  if (value == nullptr) return ints;
  if (value->type != GgufType::kArray ||
      (value->element != GgufType::kI32 && value->element != GgufType::kU32)) {
    return WrongType(*this, key, "an array of 32-bit integers");
  }
  ints.resize(value->count);
  if (!ints.empty()) std::memcpy(ints.data(), value->text.data(), ints.size() * sizeof(int32_t));
  return ints;
}

}  // namespace quire
