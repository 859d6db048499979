// What SIMDe 0.7.4 lacks for our AVX-512 kernels, so that they can be TESTED (slowly) on a machine
// with AVX2 only. Build with -mavx2 -mfma -mf16c and inline asm off; include instead of
// <immintrin.h>.
#ifndef QUIRE_KERNELS_COMMON_AVX512_SHIM_H_
#define QUIRE_KERNELS_COMMON_AVX512_SHIM_H_
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cstring>
namespace shim {
template <class T, int N>
struct A {
  T v[N];
};
template <class To, class V, class Fn>
static inline To map(V in, Fn f) {
  To r;
  static_assert(sizeof(To) % sizeof(f(in, 0)) == 0);
  for (unsigned i = 0; i < sizeof(To) / sizeof(f(in, 0)); i++) {
    auto x = f(in, i);
    memcpy((char*)&r + i * sizeof x, &x, sizeof x);
  }
  return r;
}
template <class T, class V>
static inline T at(const V& v, int i) {
  T x;
  memcpy(&x, (const char*)&v + i * sizeof x, sizeof x);
  return x;
}
static inline uint16_t bf(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return (u >> 16) | 64;
  if (!(u & 0x7f800000)) u &= 0x80000000;
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}  // denormals to 0, as the instruction
static inline float fz(uint16_t b) {
  uint32_t u = (uint32_t)b << 16;
  if (!(u & 0x7f800000)) u &= 0x80000000;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline float ff(float f) {
  return __builtin_fabsf(f) < 1.17549435e-38f ? __builtin_copysignf(0.f, f) : f;
}
static inline __m512 cvtepi32_ps(__m512i a) {
  return map<__m512>(a, [](auto& v, int i) { return (float)at<int>(v, i); });
}
static inline __m512i cvtepu8_epi16(__m256i a) {
  return map<__m512i>(a, [](auto& v, int i) { return (uint16_t)at<uint8_t>(v, i); });
}
static inline __m512i cvtepu16_epi32(__m256i a) {
  return map<__m512i>(a, [](auto& v, int i) { return (uint32_t)at<uint16_t>(v, i); });
}
static inline __m256bh cvtneps_pbh(__m512 a) {
  return map<__m256bh>(a, [](auto& v, int i) { return bf(at<float>(v, i)); });
}
// vdpbf16ps: two separately rounded FMAs, odd element first, denormals flushed in and out
static inline __m512 dpbf16_ps(__m512 c, __m512bh a, __m512bh b) {
  return map<__m512>(c, [&](auto& v, int i) {
    float t = ff(__builtin_fmaf(fz(at<uint16_t>(a, 2 * i + 1)), fz(at<uint16_t>(b, 2 * i + 1)),
                                at<float>(v, i)));
    return ff(__builtin_fmaf(fz(at<uint16_t>(a, 2 * i)), fz(at<uint16_t>(b, 2 * i)), t));
  });
}
static inline float reduce(__m512 a, bool mx) {
  float t[16];
  memcpy(t, &a, 64);
  for (int s = 8; s; s /= 2)
    for (int i = 0; i < s; i++) t[i] = mx ? (t[i] > t[i + s] ? t[i] : t[i + s]) : t[i] + t[i + s];
  return t[0];
}
static inline int reduce_i(__m512i a) {
  int s = 0;
  for (int i = 0; i < 16; i++) s += at<int>(a, i);
  return s;
}
static inline __m512i srai_epi32(__m512i a, int n) {
  return map<__m512i>(a, [n](auto& v, int i) { return at<int>(v, i) >> n; });
}
}  // namespace shim
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps shim::dpbf16_ps
#define _mm512_cvtepi32_ps shim::cvtepi32_ps
#define _mm512_cvtepu8_epi16 shim::cvtepu8_epi16
#define _mm512_cvtepu16_epi32 shim::cvtepu16_epi32
#define _mm512_cvtneps_pbh shim::cvtneps_pbh
#define _mm512_reduce_add_ps(a) shim::reduce(a, false)
#define _mm512_reduce_max_ps(a) shim::reduce(a, true)
#define _mm512_reduce_add_epi32 shim::reduce_i
#define _mm512_srai_epi32 shim::srai_epi32
#endif  // QUIRE_KERNELS_COMMON_AVX512_SHIM_H_
