// The SIMD body of RMSNorm, once an instruction set. For rms_norm.cc and the test of the simulated
// AVX-512 variant.
#ifndef QUIRE_KERNELS_RMS_NORM_RMS_NORM_ROWS_H_
#define QUIRE_KERNELS_RMS_NORM_RMS_NORM_ROWS_H_

#include "kernels/rms_norm/rms_norm.h"

namespace quire {

// Rows [begin, end) of args, which are valid. All four give the same bits.
namespace portable {
void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end);
}
namespace avx2 {
void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end);
}
namespace avx512 {
void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end);
}
namespace avx512sim {  // in the library rms_norm_sim
void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end);
}

}  // namespace quire

#endif  // QUIRE_KERNELS_RMS_NORM_RMS_NORM_ROWS_H_
