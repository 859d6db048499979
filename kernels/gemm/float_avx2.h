// AVX2 kernels for F32, BF16 and FP8 weights: F32 activations, F32 FMA, 6 x 16 outputs in
// registers.
#ifndef QUIRE_KERNELS_GEMM_FLOAT_AVX2_H_
#define QUIRE_KERNELS_GEMM_FLOAT_AVX2_H_

#include "kernels/gemm/avx2_common.h"
#include "kernels/gemm/gemm_driver.h"
#include "kernels/gemm/panel_layout.h"

namespace quire::QUIRE_ISA {

// Loads the 16 weights of k and of k + 1 (k even) as F32: w[k parity][rows 0-7, 8-15].
// `block` is the panel's data of the 128 k around k: blocks are contiguous in F32 and BF16.
template <WeightForm form>
inline void LoadTwo(const std::byte* block, int64_t k_in_block, F w[2][2]) {
  if constexpr (form == WeightForm::kF32) {
    const float* at = reinterpret_cast<const float*>(block) + k_in_block * 16;
    w[0][0] = _mm256_load_ps(at);
    w[0][1] = _mm256_load_ps(at + 8);
    w[1][0] = _mm256_load_ps(at + 16);
    w[1][1] = _mm256_load_ps(at + 24);
  } else if constexpr (form == WeightForm::kBf16) {
    WidenBf16(Load(block + k_in_block * 32), w[0]);
    WidenBf16(Load(block + k_in_block * 32 + 32), w[1]);
  } else {
    // The code in BF16's place is value * 2^-120; FMA and multiply take subnormals exactly (no
    // FTZ or DAZ). The weight is value * scale, rounded once, as DequantizeRow gives it.
    const I codes = Load(block + 64 + k_in_block * 16);
    const I mask = _mm256_set1_epi16(static_cast<int16_t>(0x87f0));
    const F up = _mm256_set1_ps(0x1p120f);
    WidenBf16(_mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 4), mask), w[0]);
    WidenBf16(_mm256_and_si256(_mm256_srai_epi16(codes, 4), mask), w[1]);
    QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
      const F scale = _mm256_load_ps(reinterpret_cast<const float*>(block) + j * 8);
      w[0][j] = _mm256_mul_ps(_mm256_mul_ps(w[0][j], up), scale);
      w[1][j] = _mm256_mul_ps(_mm256_mul_ps(w[1][j], up), scale);
    }
  }
}

template <WeightForm form>
struct FloatOps {
  using Layout = PanelLayout<form, false>;
  static constexpr int64_t kPanelRows = 16;
  static constexpr int64_t kBlockRows = 6;
  static constexpr int64_t kDirectRows = 4;
  static constexpr int64_t kDepthTile = 256;
  static constexpr Activation kActivation = Activation::kF32;
  static constexpr bool kGrouped = false;
  static_assert(kDepthTile * 64 <= kSliceBytes);
  static constexpr int kAskEvery = form == WeightForm::kF32 ? 1 : form == WeightForm::kBf16 ? 2 : 4;

  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }
  // Start of the 128 k that begin at k.
  static constexpr int64_t BlockAt(int64_t k) {
    return form == WeightForm::kFp8Block128 ? k / kFp8Block * Layout::kFp8BlockBytes
                                            : Layout::ValueAt(0, k);
  }

  template <int MR, int P>
  __attribute__((noinline)) static void Direct(RowBlock x, const std::byte* panel,
                                               int64_t panel_bytes, int64_t k_total,
                                               const std::byte* next, float* tile) {
    const float* a = reinterpret_cast<const float*>(x.words);
    F c[MR][P][2];
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int p = 0; p < P; ++p) c[i][p][0] = c[i][p][1] = _mm256_setzero_ps();
    }
    Ahead ahead(next, panel, form == WeightForm::kFp8Block128 ? 32 : 64);
    for (int64_t begin = 0; begin < k_total; begin += kFp8Block) {
      const std::byte* block = panel + BlockAt(begin);
      const int64_t count = Min(kFp8Block, k_total - begin);
      for (int64_t k = 0; k < count; k += 2, a += 2 * MR) {
        if constexpr (kDirectAsks<P>) {
          ahead.Ask();
          if (form == WeightForm::kF32) ahead.Ask();
        }
        QUIRE_UNROLL for (int p = 0; p < P; ++p) {
          F w[2][2];
          LoadTwo<form>(block + p * panel_bytes, k, w);
          QUIRE_UNROLL for (int t = 0; t < 2; ++t) {
            QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
              const F v = _mm256_broadcast_ss(a + t * MR + i);
              c[i][p][0] = _mm256_fmadd_ps(v, w[t][0], c[i][p][0]);
              c[i][p][1] = _mm256_fmadd_ps(v, w[t][1], c[i][p][1]);
            }
          }
        }
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int p = 0; p < P; ++p) {
        _mm256_store_ps(tile + (i * P + p) * 16, c[i][p][0]);
        _mm256_store_ps(tile + (i * P + p) * 16 + 8, c[i][p][1]);
      }
    }
  }

  static int64_t SliceAt(int64_t k) { return BlockAt(k); }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    if constexpr (form == WeightForm::kF32) return packed;
    float* out = reinterpret_cast<float*>(scratch);
    for (int64_t k = 0; k < count; k += 2, out += 32) {
      F w[2][2];
      LoadTwo<form>(packed + BlockAt(k / kFp8Block * kFp8Block), k % kFp8Block, w);
      _mm256_store_ps(out, w[0][0]);
      _mm256_store_ps(out + 8, w[0][1]);
      _mm256_store_ps(out + 16, w[1][0]);
      _mm256_store_ps(out + 24, w[1][1]);
    }
    return scratch;
  }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte* next, float* tile) {
    const float* a = reinterpret_cast<const float*>(x.words);
    const float* w = reinterpret_cast<const float*>(slice);
    F c[MR][2];
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
        c[i][j] = first ? _mm256_setzero_ps() : _mm256_load_ps(tile + i * 16 + j * 8);
      }
    }
    Ahead ahead(next, slice);
    for (int64_t k = 0; k < count; k += 4, w += 64, a += 4 * MR) {
      QUIRE_UNROLL
      for (int t = 0; t < 4; ++t) {
        // What 4 of k take in packed memory: 4, 2 or 1 lines.
        if (t % kAskEvery == 0) ahead.Ask();
        const F b0 = _mm256_load_ps(w + t * 16);
        const F b1 = _mm256_load_ps(w + t * 16 + 8);
        QUIRE_UNROLL
        for (int i = 0; i < MR; ++i) {
          const F v = _mm256_broadcast_ss(a + t * MR + i);
          c[i][0] = _mm256_fmadd_ps(v, b0, c[i][0]);
          c[i][1] = _mm256_fmadd_ps(v, b1, c[i][1]);
        }
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) _mm256_store_ps(tile + i * 16 + j * 8, c[i][j]);
    }
  }

  static void Finish(float*, const float*, const int32_t*, const std::byte*, int64_t) {}
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_FLOAT_AVX2_H_
