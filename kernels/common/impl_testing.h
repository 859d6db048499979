// For tests that run every implementation of an operation.
#ifndef QUIRE_KERNELS_COMMON_IMPL_TESTING_H_
#define QUIRE_KERNELS_COMMON_IMPL_TESTING_H_

#include <span>
#include <vector>

#include "kernels/common/impl.h"

namespace quire::test {

// Runs an implementation that takes no scratch.
template <class Args>
absl::Status RunOn(const Impl<Args>& impl, const Args& args, int num_threads = 1) {
  ThreadPool pool(num_threads);
  ScratchArena scratch({});
  ExecContext context{pool, scratch};
  return impl.run(args, context);
}

// What this machine can run of `impls`, the reference first, and the simulated AVX-512 variant.
template <class Args>
std::vector<Impl<Args>> Runnable(std::span<const Impl<Args>> impls,
                                 absl::Status (*simulated)(const Args&, ExecContext&)) {
  std::vector<Impl<Args>> runnable;
  for (const Impl<Args>& impl : impls) {
    if (impl.isa <= DetectIsa()) runnable.push_back(impl);
  }
  if (DetectIsa() >= Isa::kAvx2) runnable.push_back({"avx512sim", Isa::kAvx2, false, simulated});
  return runnable;
}

}  // namespace quire::test

#endif  // QUIRE_KERNELS_COMMON_IMPL_TESTING_H_
