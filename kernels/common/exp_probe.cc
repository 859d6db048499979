// exp.h compiled for each instruction set, for exp_test.cc.
#include <cstdint>

#include "kernels/common/exp.h"

namespace quire::QUIRE_ISA {

// y[i] = e^x[i] by the scalar (width 1) or vector (8, 16) form; count is a multiple of 16.
bool ExpProbe(int width, bool non_positive, const float* x, float* y, int64_t count) {
  if (width == 1) {
    for (int64_t i = 0; i < count; ++i) y[i] = non_positive ? ExpNonPositive(x[i]) : Exp(x[i]);
    return true;
  }
#if QUIRE_SIMD_AVX2 || QUIRE_SIMD_AVX512
  if (width == 8) {
    for (int64_t i = 0; i < count; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      _mm256_storeu_ps(y + i, non_positive ? ExpNonPositive(v) : Exp(v));
    }
    return true;
  }
#endif
#if QUIRE_SIMD_AVX512
  if (width == 16) {
    for (int64_t i = 0; i < count; i += 16) {
      const __m512 v = _mm512_loadu_ps(x + i);
      _mm512_storeu_ps(y + i, non_positive ? ExpNonPositive(v) : Exp(v));
    }
    return true;
  }
#endif
  return false;
}

}  // namespace quire::QUIRE_ISA
