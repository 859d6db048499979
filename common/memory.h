// Large anonymous memory and read-only file mappings.
//
// HugeBuffer: zeroed anonymous memory, 2 MiB aligned, with transparent huge pages asked for.
// MappedFile: a whole file mapped read-only; the bytes are untrusted input.
#ifndef QUIRE_COMMON_MEMORY_H_
#define QUIRE_COMMON_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace quire {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  ~HugeBuffer();

  // Errors: RESOURCE_EXHAUSTED naming `what` and the size if the memory cannot be had.
  static absl::StatusOr<HugeBuffer> Allocate(int64_t size_bytes, const std::string& what);

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  void* mapping_ = nullptr;  // what munmap wants; data_ lies inside it
  int64_t mapping_bytes_ = 0;
};

class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Errors: NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (not a regular file), naming the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }
  const std::string& path() const { return path_; }

  // Tells the kernel that [begin, end) has been read and need not stay resident.
  void Release(int64_t begin, int64_t end) const;

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  std::string path_;
};

// Bytes of memory that this process may still take: MemAvailable, or less under a cgroup limit.
int64_t AvailableMemoryBytes();

}  // namespace quire

#endif  // QUIRE_COMMON_MEMORY_H_
