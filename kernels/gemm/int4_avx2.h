// AVX2 kernels for 4-bit weights and s8 activations in groups of 32: u4 x s8 pairs are at most
// 2 * 15 * 127 in magnitude, so the 8 vpmaddubsw of a group sum up in 16 bits (30480) exactly, and
// one vpmaddwd closes the group. The fastest form on this class of machine.
#ifndef QUIRE_KERNELS_GEMM_INT4_AVX2_H_
#define QUIRE_KERNELS_GEMM_INT4_AVX2_H_

#include "kernels/gemm/avx2_common.h"
#include "kernels/gemm/gemm_driver.h"
#include "kernels/gemm/panel_layout.h"

namespace quire::QUIRE_ISA {

// kInt4Group32 takes 8 * sum(codes of x) off the exact integer sum; kInt4Group32Min adds
// min * sum(x) to the chain.
template <WeightForm form>
struct Int4Ops {
  using Layout = PanelLayout<form, false>;
  static constexpr bool kHasMin = Layout::kHasMin;
  static constexpr int64_t kPanelRows = 16;
  static constexpr int64_t kBlockRows = 6;
  static constexpr int64_t kDirectRows = 4;
  static constexpr int64_t kDepthTile = 512;
  static constexpr Activation kActivation = Activation::kS8Quad;
  static constexpr bool kGrouped = true;
  static constexpr int64_t kSliceGroupBytes = 512 + 128;  // u8 codes, F32 scales, F32 mins
  static_assert(kDepthTile / kGroup * kSliceGroupBytes <= kSliceBytes);

  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  // Where a group meets F32; the same operations at every M.
  static F AddGroup(F chain, I sum16, F w_scale, F w_min, float x_scale, int32_t x_sum) {
    I sum = _mm256_madd_epi16(sum16, _mm256_set1_epi16(1));
    if constexpr (!kHasMin) sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(8 * x_sum));
    chain = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                            _mm256_mul_ps(w_scale, _mm256_set1_ps(x_scale)), chain);
    if constexpr (kHasMin) {
      const float x_total = static_cast<float>(x_sum) * x_scale;
      chain = _mm256_fmadd_ps(w_min, _mm256_set1_ps(x_total), chain);
    }
    return chain;
  }

  template <int MR, int P>
  __attribute__((noinline)) static void Direct(RowBlock x, const std::byte* panel,
                                               int64_t panel_bytes, int64_t k_total,
                                               const std::byte* next, float* tile) {
    const I low = _mm256_set1_epi8(15);
    F f[MR][P][2];
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int p = 0; p < P; ++p) f[i][p][0] = f[i][p][1] = _mm256_setzero_ps();
    }
    Ahead ahead(next, panel);
    for (int64_t g = 0; g < k_total / kGroup; ++g, panel += Layout::kGroupBytes) {
      const uint32_t* a = x.words + g * 8 * MR;
      QUIRE_UNROLL for (int p = 0; p < P; ++p) {
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          const std::byte* b = panel + p * panel_bytes + j * 32;
          I c[MR];
          QUIRE_UNROLL for (int i = 0; i < MR; ++i) c[i] = _mm256_setzero_si256();
          QUIRE_UNROLL for (int q = 0; q < 4; ++q) {
            if constexpr (kDirectAsks<P>) {
              if (q < 2 || (q == 2 && j == 0)) ahead.Ask();
            }
            const I w = Load(b + q * 64);
            const I first = _mm256_and_si256(w, low);
            const I second = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
            QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
              AddTo16(c[i], _mm256_maddubs_epi16(first, Broadcast(a + q * MR + i)));
              AddTo16(c[i], _mm256_maddubs_epi16(second, Broadcast(a + (4 + q) * MR + i)));
            }
          }
          const std::byte* scales = panel + p * panel_bytes + 256 + j * 16;
          const F w_scale = LoadF16(scales);
          const F w_min = kHasMin ? LoadF16(scales + 32) : _mm256_setzero_ps();
          QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
            f[i][p][j] = AddGroup(f[i][p][j], c[i], w_scale, w_min, x.scales[g * MR + i],
                                  x.sums[g * MR + i]);
          }
        }
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int p = 0; p < P; ++p) {
        _mm256_store_ps(tile + (i * P + p) * 16, f[i][p][0]);
        _mm256_store_ps(tile + (i * P + p) * 16 + 8, f[i][p][1]);
      }
    }
  }

  // A group: u8 [8 k-quads][2][8 columns][4].
  static int64_t SliceAt(int64_t k) { return k / kGroup * Layout::kGroupBytes; }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    const I low = _mm256_set1_epi8(15);
    const std::byte* from = packed;
    std::byte* out = scratch;
    for (int64_t g = 0; g < count / kGroup; ++g) {
      QUIRE_UNROLL for (int t = 0; t < 8; ++t) {
        const I w = Load(from + t * 32);
        _mm256_store_si256(reinterpret_cast<I*>(out + t * 32), _mm256_and_si256(w, low));
        _mm256_store_si256(reinterpret_cast<I*>(out + 256 + t * 32),
                           _mm256_and_si256(_mm256_srli_epi16(w, 4), low));
      }
      float* scales = reinterpret_cast<float*>(out + 512);
      QUIRE_UNROLL for (int j = 0; j < (kHasMin ? 4 : 2); ++j) {
        _mm256_store_ps(scales + j * 8, LoadF16(from + 256 + j * 16));
      }
      from += Layout::kGroupBytes;
      out += kSliceGroupBytes;
    }
    return scratch;
  }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte* next, float* tile) {
    if (first) {
      QUIRE_UNROLL for (int i = 0; i < 2 * MR; ++i) {
        _mm256_store_ps(tile + i * 8, _mm256_setzero_ps());
      }
    }
    const uint32_t* a = x.words;
    Ahead ahead(next, slice);
    for (int64_t g = 0; g < count / kGroup; ++g, slice += kSliceGroupBytes) {
      I c[MR][2];
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) c[i][0] = c[i][1] = _mm256_setzero_si256();
      QUIRE_UNROLL for (int q = 0; q < 8; ++q, a += MR) {
        if (q < 5) ahead.Ask();  // 288 or 320 packed bytes a group
        const I b0 = Load(slice + q * 64);
        const I b1 = Load(slice + q * 64 + 32);
        QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
          const I v = Broadcast(a + i);
          AddTo16(c[i][0], _mm256_maddubs_epi16(b0, v));
          AddTo16(c[i][1], _mm256_maddubs_epi16(b1, v));
        }
      }
      const float* scales = reinterpret_cast<const float*>(slice + 512);
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          float* chain = tile + i * 16 + j * 8;
          const F w_min = kHasMin ? _mm256_load_ps(scales + 16 + j * 8) : _mm256_setzero_ps();
          _mm256_store_ps(
              chain, AddGroup(_mm256_load_ps(chain), c[i][j], _mm256_load_ps(scales + j * 8), w_min,
                              x.scales[g * MR + i], x.sums[g * MR + i]));
        }
      }
      asm volatile("" : : : "memory");  // the chains stay in the tile: registers hold the sums
    }
  }

  static void Finish(float*, const float*, const int32_t*, const std::byte*, int64_t) {}
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_INT4_AVX2_H_
