// AVX-512 VNNI kernels (vpdpbusd, u8 x s8 to s32, exact): weights are the unsigned side (code +
// 128, or nibbles), activations the signed one; offset * sum(codes of x) comes off the integer sum.
// So the correction belongs to the rows of x and panels carry none.
#ifndef QUIRE_KERNELS_GEMM_INT_AVX512_H_
#define QUIRE_KERNELS_GEMM_INT_AVX512_H_

#include "kernels/common/simd.h"
#include "kernels/gemm/gemm_driver.h"
#include "kernels/gemm/panel_layout.h"

namespace quire::QUIRE_ISA {

// GCC 12 spills the sums of the intrinsic (half of the peak lost); one instruction of assembly does
// not.
inline void DotBytes(__m512i& sum, __m512i u, __m512i s) {
#if defined(QUIRE_AVX512_SIMULATED)
  sum = _mm512_dpbusd_epi32(sum, u, s);
#else
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
#endif
}

inline __m512 LoadF16x16(const std::byte* from) {
#if defined(QUIRE_AVX512_SIMULATED)
  alignas(32) float values[16];
  for (int j = 0; j < 2; ++j) {
    _mm256_store_ps(
        values + j * 8,
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j * 16))));
  }
  return _mm512_loadu_ps(values);
#else
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
}

struct IntAvx512Base {
  static constexpr int64_t kPanelRows = 32;
  static constexpr int64_t kDirectRows = 0;
  static constexpr int64_t kDepthTile = int64_t{1} << 20;  // whole panels stay in L2
  static constexpr Activation kActivation = Activation::kS8Quad;
};

// One scale a row of W: the tile holds s32 sums until Finish.
struct Int8ChannelOps : IntAvx512Base {
  using Layout = PanelLayout<WeightForm::kInt8Channel, true>;
  static constexpr int64_t kBlockRows = kRowsInRegisters<12>;
  static constexpr bool kGrouped = false;
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  static int64_t SliceAt(int64_t k) { return Layout::ValueAt(0, k); }
  static const std::byte* Slice(const std::byte* packed, int64_t, std::byte*) { return packed; }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte*, float* tile) {
    __m512i c[MR][2];
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
        c[i][j] = first ? _mm512_setzero_si512() : _mm512_loadu_si512(tile + i * 32 + j * 16);
      }
    }
    const uint32_t* a = x.words;
    for (int64_t k = 0; k < count; k += 4, slice += 128, a += MR) {
      const __m512i b0 = _mm512_loadu_si512(slice);
      const __m512i b1 = _mm512_loadu_si512(slice + 64);
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
        const __m512i v = _mm512_set1_epi32(static_cast<int>(a[i]));
        DotBytes(c[i][0], b0, v);
        DotBytes(c[i][1], b1, v);
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
        _mm512_storeu_si512(tile + i * 32 + j * 16, c[i][j]);
      }
    }
  }

  static void Finish(float* chain, const float* x_scale, const int32_t* x_sum,
                     const std::byte* panel, int64_t k) {
    const float* w_scale = reinterpret_cast<const float*>(panel + Layout::ScaleAt(0, 0, k));
    for (int j = 0; j < 32; j += 16) {
      const __m512i sum =
          _mm512_sub_epi32(_mm512_loadu_si512(chain + j), _mm512_set1_epi32(128 * *x_sum));
      const __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(w_scale + j), _mm512_set1_ps(*x_scale));
      _mm512_storeu_ps(chain + j, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale));
    }
  }
};

// One F16 scale a group of 32 of k: kInt8Group32, kInt4Group32, kInt4Group32Min.
template <WeightForm form>
struct GroupOps : IntAvx512Base {
  using Layout = PanelLayout<form, true>;
  static constexpr int64_t kBlockRows = kRowsInRegisters<6>;
  static constexpr bool kGrouped = true;
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  static int64_t SliceAt(int64_t k) { return k / kGroup * Layout::kGroupBytes; }
  static const std::byte* Slice(const std::byte* packed, int64_t, std::byte*) { return packed; }

  // The exact sums of one group: c[i][j] = sum over 32 of k of weight code * x code.
  template <int MR>
  static void SumGroup(const uint32_t* a, const std::byte* group, __m512i (&c)[MR][2]) {
    if constexpr (Layout::kIsInt4) {
      const __m512i low = _mm512_set1_epi8(15);
      QUIRE_UNROLL for (int q = 0; q < 4; ++q) {
        __m512i first[2], second[2];
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          const __m512i w = _mm512_loadu_si512(group + (j * 4 + q) * 64);
          first[j] = _mm512_and_si512(w, low);
          second[j] = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
        }
        QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
          const __m512i v0 = _mm512_set1_epi32(static_cast<int>(a[q * MR + i]));
          const __m512i v1 = _mm512_set1_epi32(static_cast<int>(a[(4 + q) * MR + i]));
          QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
            DotBytes(c[i][j], first[j], v0);
            DotBytes(c[i][j], second[j], v1);
          }
        }
      }
    } else {
      QUIRE_UNROLL for (int q = 0; q < 8; ++q) {
        const __m512i b0 = _mm512_loadu_si512(group + q * 128);
        const __m512i b1 = _mm512_loadu_si512(group + q * 128 + 64);
        QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
          const __m512i v = _mm512_set1_epi32(static_cast<int>(a[q * MR + i]));
          DotBytes(c[i][0], b0, v);
          DotBytes(c[i][1], b1, v);
        }
      }
    }
  }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte*, float* tile) {
    constexpr int offset = Layout::kHasMin ? 0 : Layout::kIsInt4 ? 8 : 128;
    __m512 f[MR][2];
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
        f[i][j] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(tile + i * 32 + j * 16);
      }
    }
    for (int64_t g = 0; g < count / kGroup; ++g, slice += Layout::kGroupBytes) {
      __m512i c[MR][2];
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
        c[i][0] = c[i][1] = _mm512_set1_epi32(-offset * x.sums[g * MR + i]);
      }
      SumGroup<MR>(x.words + g * 8 * MR, slice, c);
      const std::byte* scales = slice + (Layout::kIsInt4 ? 512 : 1024);
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
        const __m512 w_scale = LoadF16x16(scales + j * 32);
        QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
          const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x.scales[g * MR + i]));
          f[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[i][j]), scale, f[i][j]);
        }
        if constexpr (Layout::kHasMin) {
          const __m512 w_min = LoadF16x16(scales + 64 + j * 32);
          QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
            const float x_total = static_cast<float>(x.sums[g * MR + i]) * x.scales[g * MR + i];
            f[i][j] = _mm512_fmadd_ps(w_min, _mm512_set1_ps(x_total), f[i][j]);
          }
        }
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) _mm512_storeu_ps(tile + i * 32 + j * 16, f[i][j]);
    }
  }

  static void Finish(float*, const float*, const int32_t*, const std::byte*, int64_t) {}
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_INT_AVX512_H_
