// TensorFiles: the tensors of a checkpoint as byte ranges of read-only mapped files, whatever
// format the files have. Readers (safetensors.h, gguf.h) check every number of a file before it
// becomes a TensorInfo, so a range in here always lies inside its file and fits type and shape.
#ifndef QUIRE_WORKER_MODEL_TENSOR_FILES_H_
#define QUIRE_WORKER_MODEL_TENSOR_FILES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/memory.h"

namespace quire {

enum class TensorType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kF8E4m3,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4K,
  kQ5K,
  kQ6K,
  kOther,  // known by size only; a model that needs such a tensor is refused
};

struct TensorTypeInfo {
  TensorType type = TensorType::kOther;
  const char* name = "";       // as the file format spells it
  int64_t block_elements = 1;  // elements of one block along the innermost dimension
  int64_t block_bytes = 1;
};

struct TensorInfo {
  std::string name;
  TensorTypeInfo type;
  std::vector<int64_t> shape;  // outermost first; rows of the last dimension are contiguous
  int32_t file = 0;            // index into TensorFiles::files
  int64_t begin = 0, end = 0;  // bytes of that file

  int64_t num_elements() const;
  int64_t size_bytes() const { return end - begin; }
};

struct TensorFiles {
  std::vector<MappedFile> files;
  std::map<std::string, TensorInfo, std::less<>> tensors;

  const TensorInfo* Find(std::string_view name) const;  // null if there is none
  const std::byte* Data(const TensorInfo& tensor) const;
  const std::string& Path(const TensorInfo& tensor) const { return files[tensor.file].path(); }

  // Bytes [begin, end) of the tensor have been read and need not stay resident.
  void Release(const TensorInfo& tensor, int64_t begin, int64_t end) const;
};

// Bytes of a tensor of `shape`, or nothing if the number does not fit into 62 bits or the innermost
// dimension is no whole number of blocks. Sizes must be >= 0.
bool TensorBytes(const TensorTypeInfo& type, const std::vector<int64_t>& shape, int64_t* bytes);

// Text of an untrusted file for a message: quoted, unprintable bytes replaced, long text cut.
std::string Quoted(std::string_view text);
std::string ShapeString(const std::vector<int64_t>& shape);  // "[3, 4]"

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_TENSOR_FILES_H_
