#include "worker/model/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/model/json_file.h"

namespace quire {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // what the format's own library allows
constexpr size_t kMaxTensors = 200'000;            // bounds memory; real checkpoints have thousands
constexpr size_t kMaxDimensions = 8;

constexpr TensorTypeInfo kTypes[] = {
    {TensorType::kF32, "F32", 1, 4},       {TensorType::kF16, "F16", 1, 2},
    {TensorType::kBf16, "BF16", 1, 2},     {TensorType::kF8E4m3, "F8_E4M3", 1, 1},
    {TensorType::kOther, "F8_E5M2", 1, 1}, {TensorType::kOther, "F8_E8M0", 1, 1},
    {TensorType::kOther, "F64", 1, 8},     {TensorType::kOther, "BOOL", 1, 1},
    {TensorType::kOther, "I8", 1, 1},      {TensorType::kOther, "U8", 1, 1},
    {TensorType::kOther, "I16", 1, 2},     {TensorType::kOther, "U16", 1, 2},
    {TensorType::kOther, "I32", 1, 4},     {TensorType::kOther, "U32", 1, 4},
    {TensorType::kOther, "I64", 1, 8},     {TensorType::kOther, "U64", 1, 8},
};

// Takes the header's JSON events. The first fault ends the parse; its message is in `error`.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(std::vector<TensorInfo>* tensors) : tensors_(tensors) {}
  std::string error;

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) return Enter(State::kTop);
    if (state_ == State::kTop && in_metadata_) return Enter(State::kMetadata);
    if (state_ == State::kTop) {
      if (tensors_->size() >= kMaxTensors) {
        return Fail(absl::StrCat("more than ", kMaxTensors, " tensors, the limit"));
      }
      current_ = TensorInfo();
      current_.name = key_;
      seen_type_ = seen_shape_ = seen_offsets_ = false;
      return Enter(State::kTensor);
    }
    return Unexpected("an object");
  }
  bool key(string_t& name) override {
    if (state_ == State::kTop) {
      in_metadata_ = name == "__metadata__";
      if (!names_.insert(name).second) return Fail(absl::StrCat("tensor ", Quoted(name), " twice"));
    } else if (state_ == State::kTensor && name != "dtype" && name != "shape" &&
               name != "data_offsets") {
      return Fail(absl::StrCat(Where(), " has the unknown field ", Quoted(name)));
    }
    (state_ == State::kTop ? key_ : field_) = name;
    return true;
  }
  bool end_object() override {
    if (state_ == State::kTensor) {
      if (!seen_type_ || !seen_shape_ || !seen_offsets_) {
        return Fail(absl::StrCat(Where(), " lacks ",
                                 !seen_type_    ? "dtype"
                                 : !seen_shape_ ? "shape"
                                                : "data_offsets"));
      }
      tensors_->push_back(std::move(current_));
    }
    return Enter(state_ == State::kTop ? State::kEnd : State::kTop);
  }
  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kTensor || field_ != "dtype" || seen_type_) return Unexpected("a string");
    seen_type_ = true;
    for (const TensorTypeInfo& type : kTypes) {
      if (value == type.name) {
        current_.type = type;
        return true;
      }
    }
    return Fail(absl::StrCat(Where(), " has the unknown dtype ", Quoted(value)));
  }
  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || field_ == "dtype") return Unexpected("an array");
    bool& seen = field_ == "shape" ? seen_shape_ : seen_offsets_;
    if (seen) return Unexpected("a second array");
    seen = true;
    num_offsets_ = 0;
    return Enter(State::kArray);
  }
  bool end_array() override {
    if (field_ == "data_offsets" && num_offsets_ != 2) {
      return Fail(
          absl::StrCat(Where(), ": data_offsets has ", num_offsets_, " numbers, must be 2"));
    }
    return Enter(State::kTensor);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kArray) return Unexpected("a number");
    if (value > uint64_t{1} << 62) {
      return Fail(absl::StrCat(Where(), ": ", field_, " holds ", value, ", the limit is 2^62"));
    }
    if (field_ == "data_offsets") {
      if (num_offsets_ == 2) return Fail(absl::StrCat(Where(), ": data_offsets has more than 2"));
      (num_offsets_++ == 0 ? current_.begin : current_.end) = static_cast<int64_t>(value);
      return true;
    }
    if (current_.shape.size() == kMaxDimensions) {
      return Fail(absl::StrCat(Where(), ": shape has more than ", kMaxDimensions, " dimensions"));
    }
    current_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_integer(number_integer_t value) override {
    if (state_ != State::kArray) return Unexpected("a number");
    return Fail(absl::StrCat(Where(), ": ", field_, " holds ", value, ", must be at least 0"));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", Quoted(text)));
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    return Fail(absl::StrCat("JSON is broken at byte ", position, ": ", Quoted(e.what())));
  }
  bool complete() const { return state_ == State::kEnd; }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kArray, kEnd };

  bool Enter(State state) {
    state_ = state;
    return true;
  }
  bool Fail(std::string message) {
    error = std::move(message);
    return false;
  }
  std::string Where() const { return absl::StrCat("tensor ", Quoted(key_)); }
  bool Unexpected(const std::string& what) {
    return Fail(absl::StrCat(key_.empty() ? "top level" : Where(),
                             field_.empty() ? "" : absl::StrCat(", field ", Quoted(field_)),
                             ": unexpected ", what));
  }

  std::vector<TensorInfo>* const tensors_;
  std::set<std::string> names_;
  State state_ = State::kStart;
  bool in_metadata_ = false;
  std::string key_, field_;
  TensorInfo current_;
  bool seen_type_ = false, seen_shape_ = false, seen_offsets_ = false;
  int num_offsets_ = 0;
};

// All ranges against type, shape and one another. `data_bytes` is what follows the header.
absl::Status CheckRanges(const std::string& path, std::vector<TensorInfo>& tensors,
                         int64_t data_bytes) {
  const auto fail = [&](const TensorInfo& t, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", Quoted(t.name), ": ", what));
  };
  for (const TensorInfo& t : tensors) {
    const std::string offsets = absl::StrCat("data_offsets [", t.begin, ", ", t.end, "]");
    if (t.begin > t.end) return fail(t, absl::StrCat(offsets, " end before they begin"));
    if (t.end > data_bytes) {
      return fail(t, absl::StrCat(offsets, " end past the file's ", data_bytes, " bytes of data"));
    }
    int64_t bytes = 0;
    if (!TensorBytes(t.type, t.shape, &bytes)) {
      return fail(t, absl::StrCat("shape ", ShapeString(t.shape), " is too large"));
    }
    if (bytes != t.size_bytes()) {
      return fail(t, absl::StrCat("shape ", ShapeString(t.shape), " of ", t.type.name, " takes ",
                                  bytes, " bytes, ", offsets, " hold ", t.size_bytes()));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& t : tensors) {
    if (t.begin != end) {
      const std::string before = previous == nullptr ? "the start" : Quoted(previous->name);
      return fail(t, absl::StrCat("data_offsets [", t.begin, ", ", t.end, "] ",
                                  t.begin < end ? "overlap " : "leave a hole after ", before,
                                  ", which ends at ", end));
    }
    end = t.end;
    previous = &t;
  }
  if (end != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the tensors end at byte ", end,
                                                   " of the data, the file holds ", data_bytes));
  }
  return absl::OkStatus();
}

// The shards that the index names, in order, each once.
absl::StatusOr<std::vector<std::string>> ShardNames(const std::string& directory,
                                                    const nlohmann::json& index,
                                                    const std::string& path) {
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is missing or empty"));
  }
  std::set<std::string> names;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map[", Quoted(tensor), "] is no string"));
    }
    const std::string& name = shard.get_ref<const std::string&>();
    if (name.empty() || name.find('/') != name.npos || name.find('\\') != name.npos ||
        name.find('\0') != name.npos || name[0] == '.' || name.size() > 255) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map[", Quoted(tensor), "] is ", Quoted(name),
                       ", must be the name of a file in the same directory"));
    }
    names.insert(name);
  }
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    struct stat info;
    if (stat(absl::StrCat(directory, "/", name).c_str(), &info) != 0) missing.push_back(name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", missing.size(), " of ", names.size(), " shards are missing in ",
                     directory, ": ",
                     absl::StrJoin(missing.begin(),
                                   missing.begin() + std::min<size_t>(missing.size(), 20), ", "),
                     missing.size() > 20 ? ", ..." : ""));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace

absl::Status AddSafetensors(const std::string& path, TensorFiles* files) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes.size(), " bytes, a safetensors file has at least 8"));
  }
  uint64_t header_bytes = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes > bytes.size() - 8 || header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header length is ", header_bytes, ", the limit is ",
                     std::min<uint64_t>(bytes.size() - 8, kMaxHeaderBytes)));
  }
  const char* header = reinterpret_cast<const char*>(bytes.data()) + 8;
  std::vector<TensorInfo> tensors;
  HeaderHandler handler(&tensors);
  if (!nlohmann::json::sax_parse(header, header + header_bytes, &handler) || !handler.complete()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": header: ", handler.error.empty() ? "is no JSON object" : handler.error));
  }
  const int64_t data_begin = 8 + static_cast<int64_t>(header_bytes);
  RETURN_IF_ERROR(CheckRanges(path, tensors, static_cast<int64_t>(bytes.size()) - data_begin));
  const auto file_index = static_cast<int32_t>(files->files.size());
  for (TensorInfo& t : tensors) {
    t.file = file_index;
    t.begin += data_begin;
    t.end += data_begin;
    std::string name = t.name;
    const auto [it, inserted] = files->tensors.emplace(std::move(name), std::move(t));
    if (!inserted) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", Quoted(it->first),
                                                     " is in ", files->Path(it->second), " too"));
    }
  }
  files->files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<TensorFiles> OpenSafetensorsDirectory(const std::string& directory) {
  TensorFiles files;
  const std::string index_path = absl::StrCat(directory, "/model.safetensors.index.json");
  struct stat info;
  if (stat(index_path.c_str(), &info) != 0) {
    const std::string path = absl::StrCat(directory, "/model.safetensors");
    if (stat(path.c_str(), &info) != 0) {
      return absl::NotFoundError(absl::StrCat(
          directory, ": neither model.safetensors nor model.safetensors.index.json is there"));
    }
    RETURN_IF_ERROR(AddSafetensors(path, &files));
    return files;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<nlohmann::json> index,
                   ReadJsonFile(index_path, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const std::vector<std::string> shards,
                   ShardNames(directory, *index, index_path));
  for (const std::string& shard : shards) {
    RETURN_IF_ERROR(AddSafetensors(absl::StrCat(directory, "/", shard), &files));
  }
  for (const auto& [tensor, shard] : (*index)["weight_map"].items()) {
    const TensorInfo* found = files.Find(tensor);
    if (found == nullptr ||
        !absl::EndsWith(files.Path(*found), "/" + shard.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map puts ",
                                                     Quoted(tensor), " into ", shard.dump(),
                                                     ", which does not hold it"));
    }
  }
  return files;
}

}  // namespace quire
