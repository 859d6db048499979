// What a kernel runs with: the threads, scratch memory, and (on CUDA) the stream.
//
// A kernel allocates nothing: it takes scratch from the context, which its caller sized with the
// kernel's ...ScratchBytes(). Scratch is per call: Reset() by the caller between kernels.
#ifndef QUIRE_KERNELS_COMMON_EXEC_CONTEXT_H_
#define QUIRE_KERNELS_COMMON_EXEC_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status_macros.h"
#include "kernels/common/thread_pool.h"

namespace quire {

class ScratchArena {
 public:
  explicit ScratchArena(std::span<std::byte> memory) : memory_(memory) {}

  // `count` uninitialised T, 64-byte aligned, valid until Reset. Requires that it fits: too little
  // scratch is a bug of the caller who sized it.
  template <class T>
  T* Take(int64_t count) {
    const int64_t begin = (used_bytes_ + 63) / 64 * 64;
    const int64_t end = begin + count * static_cast<int64_t>(sizeof(T));
    QUIRE_CHECK(end <= static_cast<int64_t>(memory_.size()));
    used_bytes_ = end;
    return reinterpret_cast<T*>(memory_.data() + begin);
  }
  void Reset() { used_bytes_ = 0; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t capacity_bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  std::span<std::byte> memory_;  // 64-byte aligned
  int64_t used_bytes_ = 0;
};

struct ExecContext {
  ThreadPool& pool;
  ScratchArena& scratch;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_COMMON_EXEC_CONTEXT_H_
