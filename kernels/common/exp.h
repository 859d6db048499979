// e^x in F32 by one polynomial, for scalars, AVX2 and AVX-512 vectors: no libm in a kernel.
//
//   n = round(x / ln 2), r = x - n ln 2 (in two parts), e^x = 2^n (1 + r + r^2 q(r))
//
// q is the minimax polynomial of degree 4 for |r| <= ln 2 / 2 (relative error of e^r 5e-9, found
// with a Remez exchange). Error of the result: below 1.1 ulp; every form does the same operations
// (fused multiply-adds), so an element has the same bits in a vector and in a scalar tail.
//
// Exp: any x. Overflows to infinity, underflows through subnormals to 0, keeps NaN.
// ExpNonPositive: for x <= 0 (softmax). Cheaper; below -87 it gives e^-87 = 1.6e-38, which no sum
// that holds a term of 1 can see; keeps NaN.
//
// In a SIMD source (QUIRE_ISA defined) the functions live in its instruction set's namespace: the
// linker must not pick an AVX copy of an inline function for the portable code.
#ifndef QUIRE_KERNELS_COMMON_EXP_H_
#define QUIRE_KERNELS_COMMON_EXP_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/common/simd.h"

#if defined(QUIRE_ISA)
namespace quire::QUIRE_ISA {
#else
namespace quire {
#endif

inline constexpr float kExpLog2E = 0x1.715476p+0f;
inline constexpr float kExpLn2High = 0x1.62e4p-1f;  // 15 bits: n * kExpLn2High is exact
inline constexpr float kExpLn2Low = 0x1.7f7d1cp-20f;
inline constexpr float kExpRound = 0x1.8p23f;  // x + this - this = round(x), n in the low bits
inline constexpr float kExpQ0 = 0.49999994270575127f;
inline constexpr float kExpQ1 = 0.16666511799919373f;
inline constexpr float kExpQ2 = 0.041667623938456855f;
inline constexpr float kExpQ3 = 0.008369722447233371f;
inline constexpr float kExpQ4 = 0.0013875041044904535f;
inline constexpr float kExpLow = -104.0f;  // e^x is 0 from here on down
inline constexpr float kExpHigh = 89.0f;   // and infinity from here on up
inline constexpr float kExpNormalLow = -87.0f;

namespace exp_internal {

// e^r in [0.7, 1.5] and, as *rounded, n + kExpRound.
inline float Reduced(float x, float* rounded) {
  *rounded = std::fma(x, kExpLog2E, kExpRound);
  const float n = *rounded - kExpRound;
  float r = std::fma(n, -kExpLn2High, x);
  r = std::fma(n, -kExpLn2Low, r);
  float q = std::fma(kExpQ4, r, kExpQ3);
  q = std::fma(q, r, kExpQ2);
  q = std::fma(q, r, kExpQ1);
  q = std::fma(q, r, kExpQ0);
  return std::fma(q, r * r, r) + 1.0f;
}

}  // namespace exp_internal

inline float Exp(float x) {
  x = x < kExpLow ? kExpLow : x;
  x = x > kExpHigh ? kExpHigh : x;
  float rounded;
  const float p = exp_internal::Reduced(x, &rounded);
  // 2^n in two factors: n reaches 128 and -150.
  const int32_t n = std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kExpRound);
  const int32_t half = n >> 1;
  const float a = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float b = std::bit_cast<float>(static_cast<uint32_t>(n - half + 127) << 23);
  return p * a * b;
}

inline float ExpNonPositive(float x) {
  x = x < kExpNormalLow ? kExpNormalLow : x;
  float rounded;
  const float p = exp_internal::Reduced(x, &rounded);
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(rounded) << 23) + 0x3f800000u);
}

#if QUIRE_SIMD_AVX2 || QUIRE_SIMD_AVX512

namespace exp_internal {

inline __m256 Reduced(__m256 x, __m256* rounded) {
  *rounded = _mm256_fmadd_ps(x, _mm256_set1_ps(kExpLog2E), _mm256_set1_ps(kExpRound));
  const __m256 n = _mm256_sub_ps(*rounded, _mm256_set1_ps(kExpRound));
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kExpLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kExpLn2Low), r);
  __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(kExpQ4), r, _mm256_set1_ps(kExpQ3));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kExpQ2));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kExpQ1));
  q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kExpQ0));
  return _mm256_add_ps(_mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
}

}  // namespace exp_internal

// min and max give their second operand where one is NaN: x stands second.
inline __m256 Exp(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(kExpLow), x);
  x = _mm256_min_ps(_mm256_set1_ps(kExpHigh), x);
  __m256 rounded;
  const __m256 p = exp_internal::Reduced(x, &rounded);
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(rounded),
                                     _mm256_castps_si256(_mm256_set1_ps(kExpRound)));
  const __m256i half = _mm256_srai_epi32(n, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

inline __m256 ExpNonPositive(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(kExpNormalLow), x);
  __m256 rounded;
  const __m256 p = exp_internal::Reduced(x, &rounded);
  const __m256i scale = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(rounded), 23),
                                         _mm256_set1_epi32(0x3f800000));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(scale));
}

#endif  // QUIRE_SIMD_AVX2 || QUIRE_SIMD_AVX512

#if QUIRE_SIMD_AVX512

namespace exp_internal {

inline __m512 Reduced(__m512 x, __m512* rounded) {
  *rounded = _mm512_fmadd_ps(x, _mm512_set1_ps(kExpLog2E), _mm512_set1_ps(kExpRound));
  const __m512 n = _mm512_sub_ps(*rounded, _mm512_set1_ps(kExpRound));
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kExpLn2High), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kExpLn2Low), r);
  __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(kExpQ4), r, _mm512_set1_ps(kExpQ3));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kExpQ2));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kExpQ1));
  q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kExpQ0));
  return _mm512_add_ps(_mm512_fmadd_ps(q, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
}

}  // namespace exp_internal

inline __m512 Exp(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(kExpLow), x);
  x = _mm512_min_ps(_mm512_set1_ps(kExpHigh), x);
  __m512 rounded;
  const __m512 p = exp_internal::Reduced(x, &rounded);
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(rounded),
                                     _mm512_castps_si512(_mm512_set1_ps(kExpRound)));
  const __m512i half = _mm512_srai_epi32(n, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i a = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i b = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23);
  return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(a)), _mm512_castsi512_ps(b));
}

inline __m512 ExpNonPositive(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(kExpNormalLow), x);
  __m512 rounded;
  const __m512 p = exp_internal::Reduced(x, &rounded);
  const __m512i scale = _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(rounded), 23),
                                         _mm512_set1_epi32(0x3f800000));
  return _mm512_mul_ps(p, _mm512_castsi512_ps(scale));
}

#endif  // QUIRE_SIMD_AVX512

}  // namespace quire

#endif  // QUIRE_KERNELS_COMMON_EXP_H_
