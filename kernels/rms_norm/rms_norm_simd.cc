#include <cmath>

#include "kernels/common/vec16.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace quire::QUIRE_ISA {

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t n = args.hidden;
  for (int64_t t = begin; t < end; ++t) {
    const float* x = args.x + t * args.x_stride;
    float* y = args.y + t * args.y_stride;
    const float mean = SumOfSquares(x, n) / static_cast<float>(n);
    const F32x16 scale = F32x16::Set1(1.0f / std::sqrt(mean + args.eps));
    int64_t i = 0;
    for (; i + kLanes16 <= n; i += kLanes16) {
      (F32x16::Load(x + i) * scale * F32x16::Load(args.weight + i)).Store(y + i);
    }
    if (i < n) {
      const F32x16 w = F32x16::LoadPartial(args.weight + i, n - i);
      (F32x16::LoadPartial(x + i, n - i) * scale * w).StorePartial(y + i, n - i);
    }
  }
}

}  // namespace quire::QUIRE_ISA
