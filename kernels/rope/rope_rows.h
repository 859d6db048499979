// The SIMD body of RoPE, once an instruction set. For rope.cc and the test of the simulated AVX-512
// variant.
#ifndef QUIRE_KERNELS_ROPE_ROPE_ROWS_H_
#define QUIRE_KERNELS_ROPE_ROPE_ROWS_H_

#include "kernels/rope/rope.h"

namespace quire {

// Tokens [begin, end) of args, which are valid. All four give the same bits.
namespace portable {
void RopeRows(const RopeArgs& args, int64_t begin, int64_t end);
}
namespace avx2 {
void RopeRows(const RopeArgs& args, int64_t begin, int64_t end);
}
namespace avx512 {
void RopeRows(const RopeArgs& args, int64_t begin, int64_t end);
}
namespace avx512sim {  // in the library rope_sim
void RopeRows(const RopeArgs& args, int64_t begin, int64_t end);
}

}  // namespace quire

#endif  // QUIRE_KERNELS_ROPE_ROPE_ROWS_H_
