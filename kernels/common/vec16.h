// F32x16: sixteen floats as one value, in the registers that QUIRE_ISA has (one zmm, two ymm, or an
// array that the compiler vectorises), with the same result in every lane on every instruction set.
// Only operations that round once are offered, so a kernel written with it gives the same bits in
// all its variants. For SIMD sources only: lives in the namespace of the instruction set.
#ifndef QUIRE_KERNELS_COMMON_VEC16_H_
#define QUIRE_KERNELS_COMMON_VEC16_H_

#include <cstdint>
#include <cstring>

#include "kernels/common/exp.h"
#include "kernels/common/simd.h"

#ifndef QUIRE_ISA
#error "vec16.h is for files in SIMD_SRCS"
#endif

namespace quire {
namespace QUIRE_ISA {

inline constexpr int64_t kLanes16 = 16;

#if !QUIRE_SIMD_AVX512 && !QUIRE_SIMD_AVX2
// A call, since 16 unrolled copies of the polynomial at each use are slow to compile.
[[gnu::noinline]] inline void ExpLanes(float* lanes) {
#pragma GCC unroll 1
  for (int i = 0; i < 16; ++i) lanes[i] = Exp(lanes[i]);
}
#endif

struct F32x16 {
#if QUIRE_SIMD_AVX512
  __m512 v;
#elif QUIRE_SIMD_AVX2
  __m256 lo, hi;
#else
  float v[16];
#endif

  static F32x16 Set1(float x) {
#if QUIRE_SIMD_AVX512
    return {_mm512_set1_ps(x)};
#elif QUIRE_SIMD_AVX2
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
#else
    F32x16 r;
    for (float& lane : r.v) lane = x;
    return r;
#endif
  }
  static F32x16 Load(const float* p) {
#if QUIRE_SIMD_AVX512
    return {_mm512_loadu_ps(p)};
#elif QUIRE_SIMD_AVX2
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
#else
    F32x16 r;
    std::memcpy(r.v, p, sizeof(r.v));
    return r;
#endif
  }
  void Store(float* p) const {
#if QUIRE_SIMD_AVX512
    _mm512_storeu_ps(p, v);
#elif QUIRE_SIMD_AVX2
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
#else
    std::memcpy(p, v, sizeof(v));
#endif
  }
  // The first n of 16 (0 < n <= 16); the others are `fill` and memory behind them is not touched.
  static F32x16 LoadPartial(const float* p, int64_t n, float fill = 0) {
    if (n == kLanes16) return Load(p);
    alignas(64) float t[16];
    for (float& lane : t) lane = fill;
    for (int64_t i = 0; i < n; ++i) t[i] = p[i];
    return Load(t);
  }
  void StorePartial(float* p, int64_t n) const {
    if (n == kLanes16) return Store(p);
    alignas(64) float t[16];
    Store(t);
    for (int64_t i = 0; i < n; ++i) p[i] = t[i];
  }

#if QUIRE_SIMD_AVX512
#define QUIRE_VEC16_BINARY(name, op512, op256, expr) \
  friend F32x16 name(F32x16 a, F32x16 b) { return {op512(a.v, b.v)}; }
#elif QUIRE_SIMD_AVX2
#define QUIRE_VEC16_BINARY(name, op512, op256, expr) \
  friend F32x16 name(F32x16 a, F32x16 b) { return {op256(a.lo, b.lo), op256(a.hi, b.hi)}; }
#else
#define QUIRE_VEC16_BINARY(name, op512, op256, expr) \
  friend F32x16 name(F32x16 a, F32x16 b) {           \
    F32x16 r;                                        \
    for (int i = 0; i < 16; ++i) {                   \
      const float x = a.v[i], y = b.v[i];            \
      r.v[i] = (expr);                               \
    }                                                \
    return r;                                        \
  }
#endif
  QUIRE_VEC16_BINARY(operator+, _mm512_add_ps, _mm256_add_ps, x + y)
  QUIRE_VEC16_BINARY(operator-, _mm512_sub_ps, _mm256_sub_ps, x - y)
  QUIRE_VEC16_BINARY(operator*, _mm512_mul_ps, _mm256_mul_ps, x* y)
  QUIRE_VEC16_BINARY(operator/, _mm512_div_ps, _mm256_div_ps, x / y)
  // a > b ? a : b, so b where either is NaN: Max(x, acc) leaves NaN out of a running maximum.
  QUIRE_VEC16_BINARY(Max, _mm512_max_ps, _mm256_max_ps, x > y ? x : y)
#undef QUIRE_VEC16_BINARY

  // e^x as in exp.h: 1.1 ulp, any x.
  friend F32x16 Exp(F32x16 a) {
#if QUIRE_SIMD_AVX512
    return {QUIRE_ISA::Exp(a.v)};
#elif QUIRE_SIMD_AVX2
    return {QUIRE_ISA::Exp(a.lo), QUIRE_ISA::Exp(a.hi)};
#else
    ExpLanes(a.v);
    return a;
#endif
  }
  // True if a > b in any lane. NaN compares false.
  friend bool AnyGreater(F32x16 a, F32x16 b) {
#if QUIRE_SIMD_AVX512
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0;
#elif QUIRE_SIMD_AVX2
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ),
                                           _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) != 0;
#else
    int any = 0;
    for (int i = 0; i < 16; ++i) any |= a.v[i] > b.v[i];
    return any != 0;
#endif
  }

  // Sum of the lanes by a fixed tree: halves are folded onto one another, 8, 4, 2, 1.
  float Sum() const {
    alignas(64) float t[16];
    Store(t);
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) t[i] += t[i + half];
    }
    return t[0];
  }
  float MaxLane() const {
    alignas(64) float t[16];
    Store(t);
    float m = t[0];
    for (int i = 1; i < 16; ++i) m = t[i] > m ? t[i] : m;
    return m;
  }
};

// sum of x[i]^2 in 64 interleaved chains and a fixed tree: depends on x and n only.
inline float SumOfSquares(const float* x, int64_t n) {
  F32x16 acc[4] = {F32x16::Set1(0), F32x16::Set1(0), F32x16::Set1(0), F32x16::Set1(0)};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    QUIRE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const F32x16 v = F32x16::Load(x + i + j * kLanes16);
      acc[j] = acc[j] + v * v;
    }
  }
  for (int j = 0; i < n; i += kLanes16, ++j) {
    const F32x16 v = F32x16::LoadPartial(x + i, n - i < kLanes16 ? n - i : kLanes16);
    acc[j] = acc[j] + v * v;
  }
  return ((acc[0] + acc[1]) + (acc[2] + acc[3])).Sum();
}

}  // namespace QUIRE_ISA
}  // namespace quire

#endif  // QUIRE_KERNELS_COMMON_VEC16_H_
