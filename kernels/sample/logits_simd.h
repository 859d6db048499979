// The tables of logits_simd.cc, one an instruction set. For logits.cc and the test of the simulated
// AVX-512 variant.
#ifndef QUIRE_KERNELS_SAMPLE_LOGITS_SIMD_H_
#define QUIRE_KERNELS_SAMPLE_LOGITS_SIMD_H_

#include "kernels/sample/logits.h"

namespace quire {

namespace portable {
extern const LogitsKernels kLogitsKernels;
}
namespace avx2 {
extern const LogitsKernels kLogitsKernels;
}
namespace avx512 {
extern const LogitsKernels kLogitsKernels;
}
namespace avx512sim {  // in the library logits_sim
extern const LogitsKernels kLogitsKernels;
}

}  // namespace quire

#endif  // QUIRE_KERNELS_SAMPLE_LOGITS_SIMD_H_
