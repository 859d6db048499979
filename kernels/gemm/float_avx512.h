// AVX-512 kernels for F32 (FMA), BF16 and FP8 weights (BF16 dot products: activations rounded to
// BF16), 12 x 32 outputs in registers, straight from the packed panels. Two columns of 16 in
// flight already outrun DRAM, and one linear stream a thread is best on this class, so M = 1 has
// no path of its own.
#ifndef QUIRE_KERNELS_GEMM_FLOAT_AVX512_H_
#define QUIRE_KERNELS_GEMM_FLOAT_AVX512_H_

#include "kernels/common/simd.h"
#include "kernels/gemm/gemm_driver.h"
#include "kernels/gemm/panel_layout.h"

namespace quire::QUIRE_ISA {

struct Avx512Base {
  static constexpr int64_t kPanelRows = 32;
  static constexpr int64_t kBlockRows = kRowsInRegisters<12>;
  static constexpr int64_t kDirectRows = 0;
  static constexpr int64_t kDepthTile = int64_t{1} << 20;  // whole panels stay in L2
  static constexpr bool kGrouped = false;

  static void Finish(float*, const float*, const int32_t*, const std::byte*, int64_t) {}
};

template <int MR>
inline void LoadTile(__m512 (&c)[MR][2], const float* tile, bool first) {
  QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
    QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
      c[i][j] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(tile + i * 32 + j * 16);
    }
  }
}

template <int MR>
inline void StoreTile(const __m512 (&c)[MR][2], float* tile) {
  QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
    QUIRE_UNROLL for (int j = 0; j < 2; ++j) _mm512_storeu_ps(tile + i * 32 + j * 16, c[i][j]);
  }
}

// c += x * w over `pairs` pairs of k: w is BF16 [pairs][32][2], words BF16 pairs [pairs][MR].
template <int MR>
inline void DotPairs(__m512 (&c)[MR][2], const uint32_t* words, const std::byte* w, int64_t pairs) {
  for (int64_t k = 0; k < pairs; ++k, w += 128, words += MR) {
    const __m512bh b0 = (__m512bh)_mm512_loadu_si512(w);
    const __m512bh b1 = (__m512bh)_mm512_loadu_si512(w + 64);
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      const __m512bh a = (__m512bh)_mm512_set1_epi32(static_cast<int>(words[i]));
      c[i][0] = _mm512_dpbf16_ps(c[i][0], a, b0);
      c[i][1] = _mm512_dpbf16_ps(c[i][1], a, b1);
    }
  }
}

template <WeightForm form>
struct FloatOps;

template <>
struct FloatOps<WeightForm::kF32> : Avx512Base {
  using Layout = PanelLayout<WeightForm::kF32, true>;
  static constexpr Activation kActivation = Activation::kF32;
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  static int64_t SliceAt(int64_t k) { return Layout::ValueAt(0, k); }
  static const std::byte* Slice(const std::byte* packed, int64_t, std::byte*) { return packed; }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte*, float* tile) {
    const float* a = reinterpret_cast<const float*>(x.words);
    const float* w = reinterpret_cast<const float*>(slice);
    __m512 c[MR][2];
    LoadTile<MR>(c, tile, first);
    for (int64_t k = 0; k < count; ++k, w += 32, a += MR) {
      const __m512 b0 = _mm512_loadu_ps(w);
      const __m512 b1 = _mm512_loadu_ps(w + 16);
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
        const __m512 v = _mm512_set1_ps(a[i]);
        c[i][0] = _mm512_fmadd_ps(v, b0, c[i][0]);
        c[i][1] = _mm512_fmadd_ps(v, b1, c[i][1]);
      }
    }
    StoreTile<MR>(c, tile);
  }
};

template <>
struct FloatOps<WeightForm::kBf16> : Avx512Base {
  using Layout = PanelLayout<WeightForm::kBf16, true>;
  static constexpr Activation kActivation = Activation::kBf16Pair;
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  static int64_t SliceAt(int64_t k) { return Layout::ValueAt(0, k); }
  static const std::byte* Slice(const std::byte* packed, int64_t, std::byte*) { return packed; }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte*, float* tile) {
    __m512 c[MR][2];
    LoadTile<MR>(c, tile, first);
    DotPairs<MR>(c, x.words, slice, count / 2);
    StoreTile<MR>(c, tile);
  }
};

// e4m3 is exact in BF16. Each 128 of k is a chain of its own, scaled and added to the outer chain.
template <>
struct FloatOps<WeightForm::kFp8Block128> : Avx512Base {
  using Layout = PanelLayout<WeightForm::kFp8Block128, true>;
  static constexpr Activation kActivation = Activation::kBf16Pair;
  static constexpr int64_t kDepthTile = 256;
  static constexpr int64_t kSliceBlockBytes = 128 + kFp8Block * 64;  // F32 scales, BF16 pairs
  static_assert(kDepthTile / kFp8Block * kSliceBlockBytes <= kSliceBytes);
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  // 16 pairs of codes to pairs of BF16: exponent and mantissa in F32's place are value * 2^-120.
  static __m512i WidenPairs(const std::byte* from) {
    const __m512i pairs =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const auto masked = [&](int mask) { return _mm512_and_si512(pairs, _mm512_set1_epi32(mask)); };
    const __m512 up = _mm512_set1_ps(0x1p120f);
    const __m512i even =
        _mm512_or_si512(_mm512_slli_epi32(masked(0x80), 24), _mm512_slli_epi32(masked(0x7f), 20));
    const __m512i odd = _mm512_or_si512(_mm512_slli_epi32(masked(0x8000), 16),
                                        _mm512_slli_epi32(masked(0x7f00), 12));
    const __m512i low = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(even), up));
    const __m512i high = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(odd), up));
    return _mm512_or_si512(
        _mm512_srli_epi32(low, 16),
        _mm512_and_si512(high, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  static int64_t SliceAt(int64_t k) { return k / kFp8Block * Layout::kFp8BlockBytes; }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    std::byte* out = scratch;
    for (int64_t k = 0; k < count; k += kFp8Block, out += kSliceBlockBytes) {
      const std::byte* block = packed + k / kFp8Block * Layout::kFp8BlockBytes;
      std::memcpy(out, block, 128);
      const int64_t pairs = Min(kFp8Block, count - k) / 2;
      for (int64_t i = 0; i < pairs * 2; ++i) {
        _mm512_storeu_si512(out + 128 + i * 64, WidenPairs(block + 128 + i * 32));
      }
    }
    return scratch;
  }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte*, float* tile) {
    if (first) std::memset(tile, 0, MR * 32 * sizeof(float));
    const uint32_t* words = x.words;
    for (int64_t k = 0; k < count; k += kFp8Block, slice += kSliceBlockBytes) {
      const int64_t pairs = Min(kFp8Block, count - k) / 2;
      __m512 c[MR][2];
      LoadTile<MR>(c, tile, true);
      DotPairs<MR>(c, words, slice + 128, pairs);
      words += pairs * MR;
      const float* scale = reinterpret_cast<const float*>(slice);
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          float* chain = tile + i * 32 + j * 16;
          _mm512_storeu_ps(chain, _mm512_fmadd_ps(c[i][j], _mm512_loadu_ps(scale + j * 16),
                                                  _mm512_loadu_ps(chain)));
        }
      }
    }
  }
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_FLOAT_AVX512_H_
