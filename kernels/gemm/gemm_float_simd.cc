// F32, BF16 and FP8 weights, compiled once per instruction set.
#include "kernels/common/simd.h"
#include "kernels/gemm/gemm_driver.h"
#if QUIRE_SIMD_AVX512
#include "kernels/gemm/float_avx512.h"
#elif QUIRE_SIMD_AVX2
#include "kernels/gemm/float_avx2.h"
#else
#include "kernels/gemm/kernels_portable.h"
#endif

namespace quire::QUIRE_ISA {

void GemmFloat(const GemmCall& call) {
  switch (call.args.w->form) {
    case WeightForm::kF32:
      GemmRun<FloatOps<WeightForm::kF32>>(call).Run();
      return;
    case WeightForm::kBf16:
      GemmRun<FloatOps<WeightForm::kBf16>>(call).Run();
      return;
    default:
      GemmRun<FloatOps<WeightForm::kFp8Block128>>(call).Run();
  }
}

}  // namespace quire::QUIRE_ISA
