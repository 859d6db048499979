// Portable kernels: plain C++ over vectors of four, products and sums rounded separately. They
// read the AVX2 panels and widen every slice; there is no direct path.
#ifndef QUIRE_KERNELS_GEMM_KERNELS_PORTABLE_H_
#define QUIRE_KERNELS_GEMM_KERNELS_PORTABLE_H_

#include "common/fp.h"
#include "kernels/gemm/gemm_driver.h"
#include "kernels/gemm/panel_layout.h"

namespace quire::QUIRE_ISA {

typedef float Float4 __attribute__((vector_size(16)));

struct PortableBase {
  static constexpr int64_t kPanelRows = 16;
  static constexpr int64_t kBlockRows = 2;
  static constexpr int64_t kDirectRows = 0;
  static constexpr int64_t kDepthTile = 256;
};

template <WeightForm form>
struct FloatOps : PortableBase {
  using Layout = PanelLayout<form, false>;
  static constexpr Activation kActivation = Activation::kF32;
  static constexpr bool kGrouped = false;
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  static int64_t SliceAt(int64_t k) {
    return form == WeightForm::kFp8Block128 ? k / kFp8Block * Layout::kFp8BlockBytes
                                            : Layout::ValueAt(0, k);
  }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    if constexpr (form == WeightForm::kF32) return packed;
    float* out = reinterpret_cast<float*>(scratch);
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t c = 0; c < 16; ++c, ++out) {
        const std::byte* at = packed + Layout::ValueAt(c, k);
        if constexpr (form == WeightForm::kBf16) {
          uint16_t value;
          std::memcpy(&value, at, 2);
          *out = Bf16ToF32(value);
        } else {
          // Exponent and mantissa in F32's place give value * 2^-120, subnormals included.
          const auto code = static_cast<uint32_t>(*at);
          const uint32_t bits = (code & 0x80u) << 24 | (code & 0x7fu) << 20;
          float scale;
          std::memcpy(&scale, packed + Layout::ScaleAt(c, k, count), 4);
          *out = std::bit_cast<float>(bits) * 0x1p120f * scale;
        }
      }
    }
    return scratch;
  }

  template <int MR>
  static void Block(RowBlock x, const std::byte* slice, int64_t count, bool first, const std::byte*,
                    float* tile) {
    const float* a = reinterpret_cast<const float*>(x.words);
    const float* w = reinterpret_cast<const float*>(slice);
    Float4 c[MR][4];
    for (int i = 0; i < MR; ++i) {
      for (int j = 0; j < 4; ++j) {
        c[i][j] = Float4{};
        if (!first) std::memcpy(&c[i][j], tile + i * 16 + j * 4, 16);
      }
    }
    for (int64_t k = 0; k < count; ++k, w += 16, a += MR) {
      for (int j = 0; j < 4; ++j) {
        Float4 b;
        std::memcpy(&b, w + j * 4, 16);
        for (int i = 0; i < MR; ++i) c[i][j] += a[i] * b;
      }
    }
    std::memcpy(tile, c, sizeof(c));
  }

  static void Finish(float*, const float*, const int32_t*, const std::byte*, int64_t) {}
};

// Code pairs as s16, [k/2][16][2].
inline void WidenPairs(const std::byte* codes, int64_t count, int16_t* out) {
  const auto* from = reinterpret_cast<const int8_t*>(codes);
  for (int64_t i = 0; i < count; ++i) out[i] = from[i];
}

// s32 sums of pairs: sum [16] += over `pairs` pairs of one row.
inline void SumPairs(const uint32_t* words, int64_t stride, const int16_t* w, int64_t pairs,
                     int32_t* sum) {
  for (int64_t p = 0; p < pairs; ++p, w += 32, words += stride) {
    const int32_t a0 = static_cast<int16_t>(*words & 0xffffu);
    const int32_t a1 = static_cast<int16_t>(*words >> 16);
    for (int c = 0; c < 16; ++c) sum[c] += a0 * w[2 * c] + a1 * w[2 * c + 1];
  }
}

// One scale a row: the tile holds s32 sums until Finish.
struct Int8ChannelOps : PortableBase {
  using Layout = PanelLayout<WeightForm::kInt8Channel, false>;
  static constexpr Activation kActivation = Activation::kS16Pair;
  static constexpr bool kGrouped = false;
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  static int64_t SliceAt(int64_t k) { return Layout::ValueAt(0, k); }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    WidenPairs(packed, count * 16, reinterpret_cast<int16_t*>(scratch));
    return scratch;
  }

  template <int MR>
  static void Block(RowBlock x, const std::byte* slice, int64_t count, bool first, const std::byte*,
                    float* tile) {
    for (int i = 0; i < MR; ++i) {
      int32_t sum[16] = {};
      if (!first) std::memcpy(sum, tile + i * 16, sizeof(sum));
      SumPairs(x.words + i, MR, reinterpret_cast<const int16_t*>(slice), count / 2, sum);
      std::memcpy(tile + i * 16, sum, sizeof(sum));
    }
  }

  static void Finish(float* chain, const float* scale, const int32_t*, const std::byte* panel,
                     int64_t k) {
    for (int64_t c = 0; c < 16; ++c) {
      int32_t sum;
      float w_scale;
      std::memcpy(&sum, chain + c, 4);
      std::memcpy(&w_scale, panel + Layout::ScaleAt(c, 0, k), 4);
      chain[c] = static_cast<float>(sum) * (w_scale * *scale);
    }
  }
};

// One scale a group of 32. A group of a slice: 512 s16 codes, 16 F32 scales, 16 F32 mins.
template <WeightForm form>
struct GroupOps : PortableBase {
  using Layout = PanelLayout<form, false>;
  static constexpr Activation kActivation = Activation::kS16Pair;
  static constexpr bool kGrouped = true;
  static int64_t PanelBytes(int64_t k) { return Layout::PanelBytes(k); }

  struct Group {
    int16_t codes[16][16][2];
    float scales[16];
    float mins[16];
  };
  static_assert(sizeof(Group) * kDepthTile / kGroup <= kSliceBytes);

  static float ReadF16(const std::byte* at) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    return F16ToF32(half);
  }

  static int64_t SliceAt(int64_t k) { return k / kGroup * Layout::kGroupBytes; }

  static const std::byte* Slice(const std::byte* packed, int64_t count, std::byte* scratch) {
    Group* out = reinterpret_cast<Group*>(scratch);
    for (int64_t g = 0; g < count; g += kGroup, ++out) {
      for (int64_t c = 0; c < 16; ++c) {
        out->scales[c] = ReadF16(packed + Layout::ScaleAt(c, g, count));
        if constexpr (Layout::kHasMin) out->mins[c] = ReadF16(packed + Layout::MinAt(c, g));
        for (int64_t k = 0; k < kGroup; ++k) {
          const auto byte = static_cast<uint8_t>(packed[Layout::ValueAt(c, g + k)]);
          int code = static_cast<int8_t>(byte);
          if constexpr (Layout::kIsInt4) {
            code = (Layout::HighNibble(k) ? byte >> 4 : byte & 15) - (Layout::kHasMin ? 0 : 8);
          }
          out->codes[k / 2][c][k % 2] = static_cast<int16_t>(code);
        }
      }
    }
    return scratch;
  }

  template <int MR>
  static void Block(RowBlock x, const std::byte* slice, int64_t count, bool first, const std::byte*,
                    float* tile) {
    if (first) std::memset(tile, 0, MR * 16 * sizeof(float));
    const Group* group = reinterpret_cast<const Group*>(slice);
    for (int64_t g = 0; g < count / kGroup; ++g, ++group) {
      for (int i = 0; i < MR; ++i) {
        int32_t sum[16] = {};
        SumPairs(x.words + g * 16 * MR + i, MR, &group->codes[0][0][0], 16, sum);
        const float x_scale = x.scales[g * MR + i];
        const float x_sum = static_cast<float>(x.sums[g * MR + i]) * x_scale;
        float* chain = tile + i * 16;
        for (int c = 0; c < 16; ++c) {
          chain[c] += static_cast<float>(sum[c]) * (group->scales[c] * x_scale);
          if constexpr (Layout::kHasMin) chain[c] += x_sum * group->mins[c];
        }
      }
    }
  }

  static void Finish(float*, const float*, const int32_t*, const std::byte*, int64_t) {}
};

}  // namespace quire::QUIRE_ISA

#endif  // QUIRE_KERNELS_GEMM_KERNELS_PORTABLE_H_
