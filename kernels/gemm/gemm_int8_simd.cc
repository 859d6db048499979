// INT8 weights with INT8 activations (W8A8), compiled once per instruction set.
#include "kernels/common/simd.h"
#include "kernels/gemm/gemm_driver.h"
#if QUIRE_SIMD_AVX512
#include "kernels/gemm/int_avx512.h"
#elif QUIRE_SIMD_AVX2
#include "kernels/gemm/int8_avx2.h"
#else
#include "kernels/gemm/kernels_portable.h"
#endif

namespace quire::QUIRE_ISA {

void GemmInt8(const GemmCall& call) {
  if (call.args.w->form == WeightForm::kInt8Channel) {
    GemmRun<Int8ChannelOps>(call).Run();
    return;
  }
#if QUIRE_SIMD_AVX2
  GemmRun<Int8GroupOps>(call).Run();
#else
  GemmRun<GroupOps<WeightForm::kInt8Group32> >(call).Run();
#endif
}

}  // namespace quire::QUIRE_ISA
