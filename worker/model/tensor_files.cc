#include "worker/model/tensor_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quire {

int64_t TensorInfo::num_elements() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;  // checked by the reader
  return count;
}

const TensorInfo* TensorFiles::Find(std::string_view name) const {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

const std::byte* TensorFiles::Data(const TensorInfo& tensor) const {
  return files[tensor.file].bytes().data() + tensor.begin;
}

void TensorFiles::Release(const TensorInfo& tensor, int64_t begin, int64_t end) const {
  files[tensor.file].Release(tensor.begin + begin, tensor.begin + end);
}

bool TensorBytes(const TensorTypeInfo& type, const std::vector<int64_t>& shape, int64_t* bytes) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  const int64_t innermost = shape.empty() ? 1 : shape.back();
  if (innermost % type.block_elements != 0) return false;
  // A dimension of zero makes the tensor empty, however large the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    *bytes = 0;
    return true;
  }
  int64_t total = type.block_bytes;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t size = i + 1 == shape.size() ? shape[i] / type.block_elements : shape[i];
    if (size < 0 || (size != 0 && total > kLimit / size)) return false;
    total *= size;
  }
  *bytes = total;
  return true;
}

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxShown = 100;
  std::string out = "\"";
  for (char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  if (text.size() > kMaxShown) absl::StrAppend(&out, "... (", text.size(), " bytes)");
  return out + "\"";
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace quire
