// What the attention kernel needs of an instruction set: F16L, a vector of 16 F32 lanes (16 tokens
// for K, 16 dims for V), and for each page type how 16 words of 32 bits become operands.
//
// A page type has kParts operands a word. Accumulate(acc, operand, scalar) adds to each lane what
// the lane's part of the word contributes, `scalar` being the matching operand of the other side (a
// query or a row of probabilities), packed by Pack. The order in which parts are added is fixed: it
// is part of the numbers.
//
//               AVX2, portable                       AVX-512 (dpbf16: q and p rounded to BF16)
//   F32         1 part: the element                  1 part: the element, F32
//   BF16        2 parts: elements 0, 1 widened       1 part: the pair (0, 1)
//   FP8         4 parts: elements 0, 2, 1, 3 widened 2 parts: the pairs (0, 2), (1, 3) as BF16
//
// kOperandScale: a power of two that the conversion of elements leaves out and q and p carry (FP8
// on AVX2: the code's bits become those of a BF16 that is 2^-120 or 2^-112 times the value,
// subnormal codes subnormal F32, all exact). kResultScale: what is left for the end, so that
// neither q nor p can overflow. Needs FTZ and DAZ off. The NaN codes of e4m3 and the NaN and
// infinity codes of e5m2 are never written (kv_write.h); here AVX2 would read them as large finite
// numbers.
#ifndef QUIRE_KERNELS_ATTENTION_ATTENTION_SIMD_H_
#define QUIRE_KERNELS_ATTENTION_ATTENTION_SIMD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/common/exp.h"
#include "kernels/common/simd.h"

namespace quire::QUIRE_ISA {
namespace {

#if QUIRE_SIMD_AVX2 || QUIRE_SIMD_AVX512
#define QUIRE_INLINE inline __attribute__((always_inline))
#else  // vectors are arrays there: the compiler may judge
#define QUIRE_INLINE inline
#endif

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

#if QUIRE_SIMD_AVX512

struct F16L {
  __m512 v;
};
QUIRE_INLINE F16L Zero() { return {_mm512_setzero_ps()}; }
QUIRE_INLINE F16L Broadcast(float x) { return {_mm512_set1_ps(x)}; }
QUIRE_INLINE F16L Load(const float* p) { return {_mm512_loadu_ps(p)}; }
QUIRE_INLINE void Store(float* p, F16L x) { _mm512_storeu_ps(p, x.v); }
QUIRE_INLINE F16L Add(F16L a, F16L b) { return {_mm512_add_ps(a.v, b.v)}; }
QUIRE_INLINE F16L Sub(F16L a, F16L b) { return {_mm512_sub_ps(a.v, b.v)}; }
QUIRE_INLINE F16L Mul(F16L a, F16L b) { return {_mm512_mul_ps(a.v, b.v)}; }
QUIRE_INLINE F16L MulAdd(F16L a, F16L b, F16L c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
QUIRE_INLINE F16L Max(F16L a, F16L b) { return {_mm512_max_ps(a.v, b.v)}; }
QUIRE_INLINE F16L ExpOf(F16L x) { return {ExpNonPositive(x.v)}; }
// Lanes from `count` on become `other`.
QUIRE_INLINE F16L Keep(F16L x, int count, float other) {
  const __mmask16 mask = count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), mask, x.v)};
}
// 16 FP16 to F32.
QUIRE_INLINE F16L LoadHalf(const std::byte* p) {
  alignas(64) float x[16];
  _mm256_store_ps(x, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  _mm256_store_ps(x + 8,
                  _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16))));
  return Load(x);
}

#elif QUIRE_SIMD_AVX2

struct F16L {
  __m256 a, b;
};
QUIRE_INLINE F16L Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
QUIRE_INLINE F16L Broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
QUIRE_INLINE F16L Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
QUIRE_INLINE void Store(float* p, F16L x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
QUIRE_INLINE F16L Add(F16L x, F16L y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
QUIRE_INLINE F16L Sub(F16L x, F16L y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
QUIRE_INLINE F16L Mul(F16L x, F16L y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
QUIRE_INLINE F16L MulAdd(F16L x, F16L y, F16L z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
QUIRE_INLINE F16L Max(F16L x, F16L y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
QUIRE_INLINE F16L ExpOf(F16L x) { return {ExpNonPositive(x.a), ExpNonPositive(x.b)}; }
QUIRE_INLINE F16L Keep(F16L x, int count, float other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
  const __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lane));
  const __m256 o = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(o, x.a, low), _mm256_blendv_ps(o, x.b, high)};
}
QUIRE_INLINE F16L LoadHalf(const std::byte* p) {
  const auto* half = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}

#else

struct F16L {
  float v[16];
};
template <class Fn>
QUIRE_INLINE F16L Map(Fn fn) {
  F16L r;
  for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
  return r;
}
QUIRE_INLINE F16L Broadcast(float x) {
  return Map([&](int) { return x; });
}
QUIRE_INLINE F16L Zero() { return Broadcast(0.0f); }
QUIRE_INLINE F16L Load(const float* p) {
  return Map([&](int i) { return p[i]; });
}
QUIRE_INLINE void Store(float* p, const F16L& x) { std::memcpy(p, x.v, sizeof(x.v)); }
QUIRE_INLINE F16L Add(const F16L& x, const F16L& y) {
  return Map([&](int i) { return x.v[i] + y.v[i]; });
}
QUIRE_INLINE F16L Sub(const F16L& x, const F16L& y) {
  return Map([&](int i) { return x.v[i] - y.v[i]; });
}
QUIRE_INLINE F16L Mul(const F16L& x, const F16L& y) {
  return Map([&](int i) { return x.v[i] * y.v[i]; });
}
QUIRE_INLINE F16L MulAdd(const F16L& x, const F16L& y, const F16L& z) {
  return Map([&](int i) { return x.v[i] * y.v[i] + z.v[i]; });
}
// The second operand where one is NaN, as the instruction.
QUIRE_INLINE F16L Max(const F16L& x, const F16L& y) {
  return Map([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
}
QUIRE_INLINE F16L ExpOf(const F16L& x) {
  return Map([&](int i) { return ExpNonPositive(x.v[i]); });
}
QUIRE_INLINE F16L Keep(const F16L& x, int count, float other) {
  return Map([&](int i) { return i < count ? x.v[i] : other; });
}
inline float HalfToFloat(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  uint32_t bits;
  if (exponent == 0) {
    const float value = static_cast<float>(h & 0x3ffu) * 0x1p-24f;
    bits = sign | std::bit_cast<uint32_t>(value);
  } else {
    bits = sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (h & 0x3ffu) << 13;
  }
  return std::bit_cast<float>(bits);
}
QUIRE_INLINE F16L LoadHalf(const std::byte* p) {
  uint16_t half[16];
  std::memcpy(half, p, sizeof(half));
  return Map([&](int i) { return HalfToFloat(half[i]); });
}

#endif

// Lanes 0 ... 15 by halving: always the same tree.
QUIRE_INLINE float SumLanes(const F16L& x) {
  alignas(64) float lane[16];
  Store(lane, x);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  }
  return lane[0];
}
QUIRE_INLINE float MaxLanes(const F16L& x) {
  alignas(64) float lane[16];
  Store(lane, x);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] = lane[i] > lane[i + step] ? lane[i] : lane[i + step];
  }
  return lane[0];
}

enum class Fp8Kind { kE4m3, kE5m2 };

#if QUIRE_SIMD_AVX512

struct F32Page {
  static constexpr int kGroup = 1, kParts = 1;
  static constexpr float kOperandScale = 1, kResultScale = 1;
  static constexpr int kOrder[] = {0};
  struct State {};
  static QUIRE_INLINE __m512 Part(const std::byte* words, uint32_t, int, State&) {
    return _mm512_loadu_ps(words);
  }
  static QUIRE_INLINE F16L Accumulate(F16L acc, __m512 x, uint32_t scalar) {
    return {_mm512_fmadd_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(scalar)), acc.v)};
  }
  static QUIRE_INLINE void Pack(F16L x, uint32_t* out) { _mm512_storeu_ps(out, x.v); }
};

QUIRE_INLINE F16L DotPairs(F16L acc, __m512i x, uint32_t scalar) {
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)x, (__m512bh)_mm512_set1_epi32(scalar))};
}

struct Bf16Page {
  static constexpr int kGroup = 2, kParts = 1;
  static constexpr float kOperandScale = 1, kResultScale = 1;
  static constexpr int kOrder[] = {0};
  struct State {};
  static QUIRE_INLINE __m512i Part(const std::byte* words, uint32_t mask, int, State&) {
    return _mm512_and_si512(_mm512_loadu_si512(words), _mm512_set1_epi32(mask));
  }
  static QUIRE_INLINE F16L Accumulate(F16L acc, __m512i x, uint32_t scalar) {
    return DotPairs(acc, x, scalar);
  }
  static QUIRE_INLINE void Pack(F16L x, uint32_t* out) {
    const __m256bh pairs = _mm512_cvtneps_pbh(x.v);
    std::memcpy(out, &pairs, sizeof(pairs));
  }
};

// The bytes of the BF16 form of each magnitude code.
template <Fp8Kind kind>
struct Fp8Table {
  alignas(64) uint8_t low[128], high[128];
  constexpr Fp8Table() : low(), high() {
    constexpr int m = kind == Fp8Kind::kE4m3 ? 3 : 2;
    constexpr int bias = kind == Fp8Kind::kE4m3 ? 7 : 15;
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> m;
      int mantissa = code & ((1 << m) - 1);
      int bits = 0;
      if (exponent != 0) {
        bits = (exponent - bias + 127) << 7 | mantissa << (7 - m);
        if (kind == Fp8Kind::kE4m3 ? code == 127 : exponent == 31) {
          bits = mantissa == 0 ? 0x7f80 : 0x7fc0;
        }
      } else if (mantissa != 0) {
        exponent = 1;
        while ((mantissa & (1 << m)) == 0) mantissa *= 2, --exponent;
        bits = (exponent - bias + 127) << 7 | (mantissa & ((1 << m) - 1)) << (7 - m);
      }
      low[code] = bits & 0xff;
      high[code] = bits >> 8;
    }
  }
};
template <Fp8Kind kind>
constexpr Fp8Table<kind> kFp8Table;

template <Fp8Kind kind>
struct Fp8Page {
  static constexpr int kGroup = 4, kParts = 2;
  static constexpr float kOperandScale = 1, kResultScale = 1;
  static constexpr int kOrder[] = {0, 1};
  struct State {
    __m512i low, high;  // bytes of the BF16 form of each code
  };
  static QUIRE_INLINE __m512i Part(const std::byte* words, uint32_t mask, int part, State& state) {
    if (part == 0) {
      const __m512i code = _mm512_and_si512(_mm512_loadu_si512(words), _mm512_set1_epi32(mask));
      const Fp8Table<kind>& table = kFp8Table<kind>;
      state.low = _mm512_permutex2var_epi8(_mm512_load_si512(table.low), code,
                                           _mm512_load_si512(table.low + 64));
      const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table.high), code,
                                                    _mm512_load_si512(table.high + 64));
      // high | (code & 0x80)
      state.high =
          _mm512_ternarylogic_epi32(high, code, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
      // Bytes 0, 2: high << 8 | low's even byte.
      return _mm512_ternarylogic_epi32(_mm512_slli_epi16(state.high, 8), state.low,
                                       _mm512_set1_epi16(0x00ff), 0xf8);
    }
    // Bytes 1, 3: low >> 8 | high's odd byte.
    return _mm512_ternarylogic_epi32(_mm512_srli_epi16(state.low, 8), state.high,
                                     _mm512_set1_epi16(static_cast<int16_t>(0xff00)), 0xf8);
  }
  static QUIRE_INLINE F16L Accumulate(F16L acc, __m512i x, uint32_t scalar) {
    return DotPairs(acc, x, scalar);
  }
  // Of each four, elements (0, 2) and (1, 3) become pairs.
  static QUIRE_INLINE void Pack(F16L x, uint32_t* out) {
    const __m256bh pairs = _mm512_cvtneps_pbh(_mm512_shuffle_ps(x.v, x.v, 0xd8));
    std::memcpy(out, &pairs, sizeof(pairs));
  }
};

#elif QUIRE_SIMD_AVX2

// Operands are F32 here, of whatever type the page is.
struct Avx2Page {
  static QUIRE_INLINE F16L Accumulate(const F16L& acc, const F16L& x, uint32_t scalar) {
    const __m256 s = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(scalar)));
    return {_mm256_fmadd_ps(x.a, s, acc.a), _mm256_fmadd_ps(x.b, s, acc.b)};
  }
  static QUIRE_INLINE void Pack(F16L x, uint32_t* out) { Store(reinterpret_cast<float*>(out), x); }

 protected:
  static QUIRE_INLINE __m256i LoadWords(const std::byte* p, uint32_t mask) {
    return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                            _mm256_set1_epi32(static_cast<int>(mask)));
  }
  // The low and high halves of 32-bit lanes, as BF16 widened.
  static QUIRE_INLINE __m256 WidenLow(__m256i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  }
  static QUIRE_INLINE __m256 WidenHigh(__m256i x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

struct F32Page : Avx2Page {
  static constexpr int kGroup = 1, kParts = 1;
  static constexpr float kOperandScale = 1, kResultScale = 1;
  static constexpr int kOrder[] = {0};
  struct State {};
  static QUIRE_INLINE F16L Part(const std::byte* words, uint32_t, int, State&) {
    return Load(reinterpret_cast<const float*>(words));
  }
};

struct Bf16Page : Avx2Page {
  static constexpr int kGroup = 2, kParts = 2;
  static constexpr float kOperandScale = 1, kResultScale = 1;
  static constexpr int kOrder[] = {0, 1};
  struct State {};
  static QUIRE_INLINE F16L Part(const std::byte* words, uint32_t mask, int part, State&) {
    const __m256i a = LoadWords(words, mask);
    const __m256i b = LoadWords(words + 32, mask);
    if (part == 0) return {WidenLow(a), WidenLow(b)};
    return {WidenHigh(a), WidenHigh(b)};
  }
};

template <Fp8Kind kind>
struct Fp8Page : Avx2Page {
  static constexpr int kGroup = 4, kParts = 4;
  // 2^120 (e4m3) and 2^112 (e5m2) in all.
  static constexpr float kOperandScale = kind == Fp8Kind::kE4m3 ? 0x1p100f : 0x1p92f;
  static constexpr float kResultScale = 0x1p20f;
  static constexpr int kOrder[] = {0, 2, 1, 3};
  struct State {
    __m256i a, b;  // two codes of each word as BF16
  };
  // A code in the high byte of each 16-bit lane (whatever is in the low byte) to the BF16 of
  // value * 2^-120 or 2^-112.
  static QUIRE_INLINE __m256i Bf16Of(__m256i x) {
    if constexpr (kind == Fp8Kind::kE4m3) {
      return _mm256_and_si256(_mm256_srai_epi16(x, 4),
                              _mm256_set1_epi16(static_cast<int16_t>(0x87f0)));
    } else {
      return _mm256_and_si256(_mm256_srai_epi16(x, 3),
                              _mm256_set1_epi16(static_cast<int16_t>(0x8fe0)));
    }
  }
  static QUIRE_INLINE F16L Part(const std::byte* words, uint32_t mask, int part, State& state) {
    if (part % 2 == 0) {
      // Words and scalars are read again for every half of the parts: kept in registers they push
      // accumulators out of them.
      asm volatile("" ::: "memory");
      state.a = LoadWords(words, mask);
      state.b = LoadWords(words + 32, mask);
      if (part == 0) {
        state.a = _mm256_slli_epi16(state.a, 8);
        state.b = _mm256_slli_epi16(state.b, 8);
      }
      state.a = Bf16Of(state.a);
      state.b = Bf16Of(state.b);
      return {WidenLow(state.a), WidenLow(state.b)};
    }
    return {WidenHigh(state.a), WidenHigh(state.b)};
  }
};

#else

template <int group>
struct PortablePage {
  static constexpr int kGroup = group, kParts = group;
  static constexpr float kOperandScale = 1, kResultScale = 1;
  static constexpr int kOrder[] = {0, 1, 2, 3};
  struct State {};
  static QUIRE_INLINE F16L Accumulate(const F16L& acc, const F16L& x, uint32_t scalar) {
    const float s = std::bit_cast<float>(scalar);
    return Map([&](int i) { return acc.v[i] + x.v[i] * s; });
  }
  static QUIRE_INLINE void Pack(const F16L& x, uint32_t* out) {
    std::memcpy(out, x.v, sizeof(x.v));
  }

 protected:
  // Element `part` of each word, by `convert` from the word shifted down to it.
  template <class Fn>
  static QUIRE_INLINE F16L Widen(const std::byte* words, uint32_t mask, int part, Fn convert) {
    uint32_t w[16];
    std::memcpy(w, words, sizeof(w));
    return Map([&](int i) { return convert((w[i] & mask) >> (32 / group * part)); });
  }
};

struct F32Page : PortablePage<1> {
  static QUIRE_INLINE F16L Part(const std::byte* words, uint32_t mask, int part, State&) {
    return Widen(words, mask, part, [](uint32_t u) { return std::bit_cast<float>(u); });
  }
};

struct Bf16Page : PortablePage<2> {
  static QUIRE_INLINE F16L Part(const std::byte* words, uint32_t mask, int part, State&) {
    return Widen(words, mask, part, [](uint32_t u) { return std::bit_cast<float>(u << 16); });
  }
};

template <Fp8Kind kind>
constexpr std::array<float, 256> Fp8Values() {
  constexpr int m = kind == Fp8Kind::kE4m3 ? 3 : 2;
  constexpr int bias = kind == Fp8Kind::kE4m3 ? 7 : 15;
  std::array<float, 256> values{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> m;
    const int mantissa = code & ((1 << m) - 1);
    float value = static_cast<float>(exponent == 0 ? mantissa : mantissa + (1 << m));
    for (int e = (exponent == 0 ? 1 : exponent) - bias - m; e != 0; e += e < 0 ? 1 : -1) {
      value *= e < 0 ? 0.5f : 2.0f;
    }
    if (kind == Fp8Kind::kE4m3 && code == 127) value = std::numeric_limits<float>::quiet_NaN();
    if (kind == Fp8Kind::kE5m2 && exponent == 31) {
      value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                            : std::numeric_limits<float>::quiet_NaN();
    }
    values[code] = value;
    values[code + 128] = -value;
  }
  return values;
}
template <Fp8Kind kind>
constexpr std::array<float, 256> kFp8Values = Fp8Values<kind>();

template <Fp8Kind kind>
struct Fp8Page : PortablePage<4> {
  static QUIRE_INLINE F16L Part(const std::byte* words, uint32_t mask, int part, State&) {
    return Widen(words, mask, part, [](uint32_t u) { return kFp8Values<kind>[u & 0xff]; });
  }
};

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_ATTENTION_ATTENTION_SIMD_H_
