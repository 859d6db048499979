// 4-bit weights with INT8 activations (W4A8), compiled once per instruction set.
#include "kernels/common/simd.h"
#include "kernels/gemm/gemm_driver.h"
#if QUIRE_SIMD_AVX512
#include "kernels/gemm/int_avx512.h"
#elif QUIRE_SIMD_AVX2
#include "kernels/gemm/int4_avx2.h"
#else
#include "kernels/gemm/kernels_portable.h"
#endif

namespace quire::QUIRE_ISA {

#if QUIRE_SIMD_AVX2
template <WeightForm form>
using GroupOps = Int4Ops<form>;
#endif

void GemmInt4(const GemmCall& call) {
  if (call.args.w->form == WeightForm::kInt4Group32) {
    GemmRun<GroupOps<WeightForm::kInt4Group32>>(call).Run();
  } else {
    GemmRun<GroupOps<WeightForm::kInt4Group32Min>>(call).Run();
  }
}

}  // namespace quire::QUIRE_ISA
