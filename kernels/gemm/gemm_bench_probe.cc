#include "kernels/gemm/gemm_bench_probe.h"

#include <immintrin.h>

namespace quire::probe {
namespace {

// Ten independent sums: latency 4 x 2 a cycle needs eight. The sums are opaque, or the compiler
// would keep one copy of equal ones.
constexpr int kSums = 10;

#define QUIRE_OPAQUE(v) asm volatile("" : "+x"(v))

typedef uint32_t Sum32 __attribute__((vector_size(32)));
typedef uint16_t Sum16 __attribute__((vector_size(32)));

template <class Sum, class Step>
inline __attribute__((always_inline)) void IntLoop(int64_t turns, Step step) {
  Sum sums[kSums];
  __m256i x = _mm256_set1_epi8(3);
  __m256i y = _mm256_set1_epi8(-5);
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) {
    sums[i] = Sum{};
    QUIRE_OPAQUE(sums[i]);
  }
  for (int64_t t = 0; t < turns; ++t) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      QUIRE_OPAQUE(x);
      step(sums[i], x, y);
    }
    QUIRE_OPAQUE(y);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) QUIRE_OPAQUE(sums[i]);
}

}  // namespace

void FmaLoop(int64_t turns) {
  __m256 sums[kSums];
  __m256 x = _mm256_set1_ps(1.0000001f);
  const __m256 y = _mm256_set1_ps(0.9999999f);
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) {
    sums[i] = x;
    QUIRE_OPAQUE(sums[i]);
  }
  for (int64_t t = 0; t < turns; ++t) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = _mm256_fmadd_ps(x, y, sums[i]);
    QUIRE_OPAQUE(x);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) QUIRE_OPAQUE(sums[i]);
}

void Madd16Loop(int64_t turns) {
  IntLoop<Sum32>(turns,
                 [](Sum32& sum, __m256i x, __m256i y) { sum += (Sum32)_mm256_madd_epi16(x, y); });
}

void MaddubsLoop(int64_t turns) {
  IntLoop<Sum16>(
      turns, [](Sum16& sum, __m256i x, __m256i y) { sum += (Sum16)_mm256_maddubs_epi16(x, y); });
}

void ReadFourStreams(const std::byte* from, int64_t bytes) {
  __m256i sums[8];
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) sums[i] = _mm256_setzero_si256();
  const int64_t stream = bytes / 4;
  for (int64_t at = 0; at < stream; at += 64) {
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) {
      const std::byte* p = from + (i % 4) * stream + at + (i / 4) * 32;
      sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) QUIRE_OPAQUE(sums[i]);
}

}  // namespace quire::probe
