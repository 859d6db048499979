// AVX2 kernels for s8 weights and s8 activations, both widened to s16: vpmaddwd is exact, signed on
// both sides, and no 8-bit scheme is faster on this class of machine.
#ifndef QUIRE_KERNELS_GEMM_INT8_AVX2_H_
#define QUIRE_KERNELS_GEMM_INT8_AVX2_H_

#include "kernels/gemm/avx2_common.h"
#include "kernels/gemm/gemm_driver.h"
#include "kernels/gemm/panel_layout.h"

namespace quire::QUIRE_ISA {

// Adds the 16 pairs of one row: c += a * b, over two vectors of 8 columns.
inline void MaddTwo(I (&c)[2], I a, I b0, I b1) {
  AddTo32(c[0], _mm256_madd_epi16(a, b0));
  AddTo32(c[1], _mm256_madd_epi16(a, b1));
}

// One scale a row of W: the tile holds s32 sums, which are exact, until Finish.
struct Int8ChannelOps {
  using Layout = PanelLayout<WeightForm::kInt8Channel, false>;
  static constexpr int64_t kPanelRows = 16;
  static constexpr int64_t kBlockRows = 6;
  static constexpr int64_t kDirectRows = 4;
  static constexpr int64_t kDepthTile = 512;
  static constexpr Activation kActivation = Activation::kS16Pair;
  static constexpr bool kGrouped = false;
  static_assert(kDepthTile * 32 <= kSliceBytes);

  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  template <int MR, int P>
  __attribute__((noinline)) static void Direct(RowBlock x, const std::byte* panel,
                                               int64_t panel_bytes, int64_t k_total,
                                               const std::byte* next, float* tile) {
    I c[P][MR][2];
    QUIRE_UNROLL for (int p = 0; p < P; ++p) {
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) c[p][i][0] = c[p][i][1] = _mm256_setzero_si256();
    }
    const uint32_t* a = x.words;
    Ahead ahead(next, panel, 32);
    for (int64_t k = 0; k < k_total; k += 2, a += MR, panel += 32) {
      if constexpr (kDirectAsks<P>) ahead.Ask();
      QUIRE_UNROLL for (int p = 0; p < P; ++p) {
        const I b0 = Load128As16(panel + p * panel_bytes);
        const I b1 = Load128As16(panel + p * panel_bytes + 16);
        QUIRE_UNROLL for (int i = 0; i < MR; ++i) MaddTwo(c[p][i], Broadcast(a + i), b0, b1);
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int p = 0; p < P; ++p) {
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          _mm256_store_si256(reinterpret_cast<I*>(tile + (i * P + p) * 16 + j * 8), c[p][i][j]);
        }
      }
    }
  }

  static int64_t SliceAt(int64_t k) { return Layout::ValueAt(0, k); }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    I* out = reinterpret_cast<I*>(scratch);
    for (int64_t k = 0; k < count; ++k) _mm256_store_si256(out + k, Load128As16(packed + k * 16));
    return scratch;
  }

  template <int MR>
  __attribute__((noinline)) static void Block(RowBlock x, const std::byte* slice, int64_t count,
                                              bool first, const std::byte* next, float* tile) {
    I c[MR][2];
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
        c[i][j] = first ? _mm256_setzero_si256() : Load(tile + i * 16 + j * 8);
      }
    }
    const uint32_t* a = x.words;
    Ahead ahead(next, slice);
    for (int64_t k = 0; k < count; k += 4, slice += 128, a += 2 * MR) {
      ahead.Ask();  // 64 packed bytes are 4 of k
      QUIRE_UNROLL
      for (int t = 0; t < 2; ++t) {
        const I b0 = Load(slice + t * 64);
        const I b1 = Load(slice + t * 64 + 32);
        QUIRE_UNROLL
        for (int i = 0; i < MR; ++i) MaddTwo(c[i], Broadcast(a + t * MR + i), b0, b1);
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
        _mm256_store_si256(reinterpret_cast<I*>(tile + i * 16 + j * 8), c[i][j]);
      }
    }
  }

  static void Finish(float* chain, const float* x_scale, const int32_t*, const std::byte* panel,
                     int64_t k) {
    const float* w_scale = reinterpret_cast<const float*>(panel + Layout::ScaleAt(0, 0, k));
    for (int j = 0; j < 16; j += 8) {
      const F scale = _mm256_mul_ps(_mm256_load_ps(w_scale + j), _mm256_set1_ps(*x_scale));
      _mm256_store_ps(chain + j, _mm256_mul_ps(_mm256_cvtepi32_ps(Load(chain + j)), scale));
    }
  }
};

// One F16 scale a group of 32 of k: exact s32 sums inside a group, an F32 chain over the groups.
struct Int8GroupOps {
  using Layout = PanelLayout<WeightForm::kInt8Group32, false>;
  static constexpr int64_t kPanelRows = 16;
  static constexpr int64_t kBlockRows = 6;
  static constexpr int64_t kDirectRows = 4;
  static constexpr int64_t kDepthTile = 512;
  static constexpr Activation kActivation = Activation::kS16Pair;
  static constexpr bool kGrouped = true;
  static constexpr int64_t kSliceGroupBytes = 1024 + 64;  // s16 codes, F32 scales
  static_assert(kDepthTile / kGroup * kSliceGroupBytes <= kSliceBytes);

  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  // Where a group meets F32; the same operations at every M.
  static F AddGroup(F chain, I sum, F w_scale, float x_scale) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(w_scale, _mm256_set1_ps(x_scale)),
                           chain);
  }

  template <int MR, int P>
  __attribute__((noinline)) static void Direct(RowBlock x, const std::byte* panel,
                                               int64_t panel_bytes, int64_t k_total,
                                               const std::byte* next, float* tile) {
    F f[P][MR][2];
    QUIRE_UNROLL for (int p = 0; p < P; ++p) {
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) f[p][i][0] = f[p][i][1] = _mm256_setzero_ps();
    }
    Ahead ahead(next, panel);
    for (int64_t g = 0; g < k_total / kGroup; ++g, panel += Layout::kGroupBytes) {
      QUIRE_UNROLL for (int p = 0; p < P; ++p) {
        const std::byte* b = panel + p * panel_bytes;
        I c[MR][2];
        QUIRE_UNROLL for (int i = 0; i < MR; ++i) c[i][0] = c[i][1] = _mm256_setzero_si256();
        QUIRE_UNROLL for (int q = 0; q < 16; ++q) {
          if constexpr (kDirectAsks<P>) {
            if (q % 2 == 0 || q == 15) ahead.Ask();
          }
          const I b0 = Load128As16(b + q * 32);
          const I b1 = Load128As16(b + q * 32 + 16);
          QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
            MaddTwo(c[i], Broadcast(x.words + (g * 16 + q) * MR + i), b0, b1);
          }
        }
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          const F w_scale = LoadF16(b + 512 + j * 16);
          QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
            f[p][i][j] = AddGroup(f[p][i][j], c[i][j], w_scale, x.scales[g * MR + i]);
          }
        }
      }
    }
    QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
      QUIRE_UNROLL for (int p = 0; p < P; ++p) {
        _mm256_store_ps(tile + (i * P + p) * 16, f[p][i][0]);
        _mm256_store_ps(tile + (i * P + p) * 16 + 8, f[p][i][1]);
      }
    }
  }

  static int64_t SliceAt(int64_t k) { return k / kGroup * Layout::kGroupBytes; }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    const std::byte* from = packed;
    std::byte* out = scratch;
    for (int64_t g = 0; g < count / kGroup; ++g) {
      for (int64_t q = 0; q < 32; ++q) {
        _mm256_store_si256(reinterpret_cast<I*>(out + q * 32), Load128As16(from + q * 16));
      }
      _mm256_store_ps(reinterpret_cast<float*>(out + 1024), LoadF16(from + 512));
      _mm256_store_ps(reinterpret_cast<float*>(out + 1056), LoadF16(from + 528));
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
      QUIRE_UNROLL for (int q = 0; q < 16; ++q, a += MR) {
        if (q % 2 == 0 || q == 15) ahead.Ask();  // 544 packed bytes a group
        const I b0 = Load(slice + q * 64);
        const I b1 = Load(slice + q * 64 + 32);
        QUIRE_UNROLL for (int i = 0; i < MR; ++i) MaddTwo(c[i], Broadcast(a + i), b0, b1);
      }
      const float* w_scale = reinterpret_cast<const float*>(slice + 1024);
      QUIRE_UNROLL for (int i = 0; i < MR; ++i) {
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          float* chain = tile + i * 16 + j * 8;
          _mm256_store_ps(chain, AddGroup(_mm256_load_ps(chain), c[i][j],
                                          _mm256_load_ps(w_scale + j * 8), x.scales[g * MR + i]));
        }
      }
      asm volatile("" : : : "memory");  // the chains stay in the tile: registers hold the sums
    }
  }

  static void Finish(float*, const float*, const int32_t*, const std::byte*, int64_t) {}
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_INT8_AVX2_H_
