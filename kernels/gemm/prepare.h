// Activations as the kernels read them: rows in blocks of MR (the last block holds the rest), a
// block as 32-bit words [k / elements][rows of the block], so that one broadcast load feeds one
// row. A row's words depend on that row only.
//
//   Activation::kF32        F32                        1 element a word
//   Activation::kBf16Pair   2 BF16, nearest even       2
//   Activation::kS16Pair    2 INT8 codes as s16        2
//   Activation::kS8Quad     4 INT8 codes               4
//
// Codes: scale = amax / 127, nearest even; one scale a row or one a row and 32 of k; an infinity
// or a NaN makes the scale NaN, so that it shows in the output. Plain loops, written so that the
// compiler vectorises them for every instruction set alike.
//
// Included by SIMD sources only; everything is in the namespace of the instruction set.
#ifndef QUIRE_KERNELS_GEMM_PREPARE_H_
#define QUIRE_KERNELS_GEMM_PREPARE_H_

#include <cstdint>
#include <cstring>

#include "kernels/gemm/gemm_simd.h"

namespace quire::QUIRE_ISA {

enum class Activation { kF32, kBf16Pair, kS16Pair, kS8Quad };

constexpr int64_t ElementsPerWord(Activation kind) {
  return kind == Activation::kF32 ? 1 : kind == Activation::kS8Quad ? 4 : 2;
}

// The prepared rows of one block, from its first k on.
struct RowBlock {
  const uint32_t* words;  // [k / elements][rows]
  const float* scales;    // [rows] or [k / 32][rows]
  const int32_t* sums;    // sum of the codes, as `scales`
};

inline int32_t MaxMagnitudeBits(const float* x, int64_t count) {
  int32_t bits = 0;  // magnitudes order as their bits do, NaN above infinity above all
  for (int64_t i = 0; i < count; ++i) {
    int32_t b;
    std::memcpy(&b, x + i, 4);
    b &= 0x7fffffff;
    bits = b > bits ? b : bits;
  }
  return bits;
}

// Codes of 16 values. `scale` > 0 and finite, or 0 for codes that are all 0.
inline void QuantizeRun(const float* x, float scale, int32_t* codes) {
  if (scale == 0.0f) {
    std::memset(codes, 0, 16 * sizeof(int32_t));
    return;
  }
  for (int64_t i = 0; i < 16; ++i) {
    float v = x[i] / scale;
    v = v > 127.0f ? 127.0f : v;
    v = v < -127.0f ? -127.0f : v;
    // Adding 1.5 * 2^23 leaves the nearest integer (even on ties) in the low bits.
    codes[i] = static_cast<int32_t>((v + 12582912.0f) - 12582912.0f);
  }
}

inline float ScaleOf(const float* x, int64_t count, float* divisor) {
  const int32_t bits = MaxMagnitudeBits(x, count);
  float amax;
  std::memcpy(&amax, &bits, 4);
  if (bits >= 0x7f800000) {
    *divisor = 0.0f;
    return amax - amax;  // NaN
  }
  *divisor = amax / 127.0f;
  return *divisor;
}

inline uint32_t RoundToBf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded;
}

// One row into its place in a block of `rows`; `words`, `scales`, `sums` point at the row's first.
template <Activation kind, bool grouped>
void PrepareRow(const float* x, int64_t k, int64_t rows, uint32_t* words, float* scales,
                int32_t* sums) {
  constexpr bool is_int = kind == Activation::kS16Pair || kind == Activation::kS8Quad;
  uint32_t run[16];
  float divisor = 0.0f;
  int32_t sum = 0;
  if constexpr (is_int && !grouped) *scales = ScaleOf(x, k, &divisor);
  for (int64_t begin = 0; begin < k; begin += 16) {
    const float* from = x + begin;
    if constexpr (kind == Activation::kF32) {
      std::memcpy(run, from, 64);
    } else if constexpr (kind == Activation::kBf16Pair) {
      for (int64_t i = 0; i < 8; ++i) {
        run[i] = RoundToBf16(from[2 * i]) | RoundToBf16(from[2 * i + 1]) << 16;
      }
    } else {
      if (grouped && begin % 32 == 0) *scales = ScaleOf(from, 32, &divisor);
      int32_t codes[16];
      QuantizeRun(from, divisor, codes);
      for (int64_t i = 0; i < 16; ++i) sum += codes[i];
      if constexpr (kind == Activation::kS16Pair) {
        for (int64_t i = 0; i < 8; ++i) {
          run[i] = (static_cast<uint32_t>(codes[2 * i]) & 0xffffu) |
                   static_cast<uint32_t>(codes[2 * i + 1]) << 16;
        }
      } else {
        for (int64_t i = 0; i < 4; ++i) {
          run[i] = (static_cast<uint32_t>(codes[4 * i]) & 0xffu) |
                   (static_cast<uint32_t>(codes[4 * i + 1]) & 0xffu) << 8 |
                   (static_cast<uint32_t>(codes[4 * i + 2]) & 0xffu) << 16 |
                   static_cast<uint32_t>(codes[4 * i + 3]) << 24;
        }
      }
      if (grouped && begin % 32 == 16) {
        *sums = sum;
        sum = 0;
        scales += rows;
        sums += rows;
      }
    }
    constexpr int64_t num_words = 16 / ElementsPerWord(kind);
    if (rows == 1) {
      std::memcpy(words, run, num_words * 4);
      words += num_words;
    } else {
      for (int64_t i = 0; i < num_words; ++i, words += rows) *words = run[i];
    }
  }
  if constexpr (is_int && !grouped) *sums = sum;
}

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_PREPARE_H_
