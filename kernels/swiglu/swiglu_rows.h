// The SIMD body of SwiGLU, once an instruction set. For swiglu.cc and the test of the simulated
// AVX-512 variant.
#ifndef QUIRE_KERNELS_SWIGLU_SWIGLU_ROWS_H_
#define QUIRE_KERNELS_SWIGLU_SWIGLU_ROWS_H_

#include "kernels/swiglu/swiglu.h"

namespace quire {

// Rows [begin, end) of args, which are valid. All four give the same bits.
namespace portable {
void SwigluRows(const SwigluArgs& args, int64_t begin, int64_t end);
}
namespace avx2 {
void SwigluRows(const SwigluArgs& args, int64_t begin, int64_t end);
}
namespace avx512 {
void SwigluRows(const SwigluArgs& args, int64_t begin, int64_t end);
}
namespace avx512sim {  // in the library swiglu_sim
void SwigluRows(const SwigluArgs& args, int64_t begin, int64_t end);
}

}  // namespace quire

#endif  // QUIRE_KERNELS_SWIGLU_SWIGLU_ROWS_H_
