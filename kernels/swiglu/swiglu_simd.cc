#include "kernels/common/vec16.h"
#include "kernels/swiglu/swiglu_rows.h"

namespace quire::QUIRE_ISA {
namespace {

// Where exp(-a) is infinite, a / (1 + infinity) is -0: the limit, and no NaN.
inline F32x16 Swiglu(F32x16 gate, F32x16 up) {
  const F32x16 one = F32x16::Set1(1);
  return gate / (one + Exp(F32x16::Set1(0) - gate)) * up;
}

}  // namespace

void SwigluRows(const SwigluArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = args.x + t * args.x_stride;
    const float* up = gate + args.inner;
    float* y = args.y + t * args.y_stride;
    int64_t i = 0;
    for (; i + kLanes16 <= args.inner; i += kLanes16) {
      Swiglu(F32x16::Load(gate + i), F32x16::Load(up + i)).Store(y + i);
    }
    if (i < args.inner) {
      const int64_t n = args.inner - i;
      Swiglu(F32x16::LoadPartial(gate + i, n), F32x16::LoadPartial(up + i, n))
          .StorePartial(y + i, n);
    }
  }
}

}  // namespace quire::QUIRE_ISA
