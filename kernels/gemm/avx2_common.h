// What the AVX2 kernels share.
//
// GCC 12 traps (each cost a factor 1.5 to 2): 16- and 32-bit integer sums spill, since GCC keeps
// copies in two vector modes and regroups the sums of an unrolled loop. Hence AddTo16 and AddTo32,
// one instruction of assembly each.
#ifndef QUIRE_KERNELS_GEMM_AVX2_COMMON_H_
#define QUIRE_KERNELS_GEMM_AVX2_COMMON_H_

#include <cstddef>
#include <cstdint>

#include "kernels/common/simd.h"

namespace quire::QUIRE_ISA {

using I = __m256i;
using F = __m256;

inline I Load(const void* p) { return _mm256_load_si256(static_cast<const I*>(p)); }
inline I Load128As16(const void* p) {  // 16 s8 to s16
  return _mm256_cvtepi8_epi16(_mm_load_si128(static_cast<const __m128i*>(p)));
}
inline I Broadcast(const uint32_t* p) { return _mm256_set1_epi32(static_cast<int>(*p)); }
inline void AddTo16(I& sum, I term) { asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(term)); }
inline void AddTo32(I& sum, I term) { asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term)); }

// 16 BF16 in lane order to F32 rows 0-7 and 8-15.
inline void WidenBf16(I w, F out[2]) {
  out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  out[1] =
      _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline F LoadF16(const void* p) {  // 8 of them
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

// Direct kernels that read one panel ask for the next one meanwhile: a second DRAM stream. With
// more panels at a time there are streams enough.
template <int P>
constexpr bool kDirectAsks = P == 1;

// Asks for the packed bytes that come next, a line at a time, while the kernel computes. Without
// any (null) it asks for `here` over and over, which costs an instruction and no branch.
class Ahead {
 public:
  Ahead(const std::byte* next, const std::byte* here, int64_t step = 64)
      : at_(next != nullptr ? next : here), step_(next != nullptr ? step : 0) {}
  void Ask() {
    _mm_prefetch(at_, _MM_HINT_T1);
    at_ += step_;
  }

 private:
  const std::byte* at_;
  int64_t step_;
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_AVX2_COMMON_H_
