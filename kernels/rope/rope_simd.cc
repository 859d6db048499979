#include <cmath>

#include "kernels/common/vec16.h"
#include "kernels/rope/rope_rows.h"

namespace quire::QUIRE_ISA {
namespace {

// n <= 16 pairs, from dim i of the first half on. The norm is applied on the way: the same
// operations, in the same order, as rms_norm.
template <bool kNorm, bool kWhole>
inline void RotatePairs(float* x, const float* cos, const float* sin, const float* weight,
                        F32x16 scale, int64_t half, int64_t n) {
  const auto load = [n](const float* p) {
    return kWhole ? F32x16::Load(p) : F32x16::LoadPartial(p, n);
  };
  F32x16 a = load(x), b = load(x + half);
  if constexpr (kNorm) {
    a = a * scale * load(weight);
    b = b * scale * load(weight + half);
  }
  const F32x16 c = load(cos), s = load(sin);
  const F32x16 first = a * c - b * s, second = b * c + a * s;
  if constexpr (kWhole) {
    first.Store(x);
    second.Store(x + half);
  } else {
    first.StorePartial(x, n);
    second.StorePartial(x + half, n);
  }
}

template <bool kNorm>
void Rows(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t size = args.head_size, half = size / 2;
  for (int64_t t = begin; t < end; ++t) {
    const float* cos = args.cos + args.positions[t] * half;
    const float* sin = args.sin + args.positions[t] * half;
    for (int32_t head = 0; head < args.num_heads; ++head) {
      float* x = args.x + t * args.x_stride + head * size;
      F32x16 scale = F32x16::Set1(1);
      if constexpr (kNorm) {
        const float mean = SumOfSquares(x, size) / static_cast<float>(size);
        scale = F32x16::Set1(1.0f / std::sqrt(mean + args.norm_eps));
      }
      const float* w = args.norm_weight;  // null without kNorm, and then not read
      int64_t i = 0;
      for (; i + kLanes16 <= half; i += kLanes16) {
        RotatePairs<kNorm, true>(x + i, cos + i, sin + i, kNorm ? w + i : nullptr, scale, half,
                                 kLanes16);
      }
      if (i < half) {
        RotatePairs<kNorm, false>(x + i, cos + i, sin + i, kNorm ? w + i : nullptr, scale, half,
                                  half - i);
      }
    }
  }
}

}  // namespace

void RopeRows(const RopeArgs& args, int64_t begin, int64_t end) {
  if (args.norm_weight != nullptr) {
    Rows<true>(args, begin, end);
  } else {
    Rows<false>(args, begin, end);
  }
}

}  // namespace quire::QUIRE_ISA
