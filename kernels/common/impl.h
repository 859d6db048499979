// One implementation of an operation, as listed by the operation's ...Impls().
#ifndef QUIRE_KERNELS_COMMON_IMPL_H_
#define QUIRE_KERNELS_COMMON_IMPL_H_

#include <span>

#include "absl/status/status.h"
#include "kernels/common/exec_context.h"
#include "kernels/common/isa.h"

namespace quire {

template <class Args>
struct Impl {
  const char* name;  // "reference", "portable", "avx2", "avx512"
  Isa isa;           // what the machine must have
  bool reference;    // the plain definition: for tests, never chosen at run time
  // Validates, then does the work. Errors: INVALID_ARGUMENT naming the field and its value;
  // UNIMPLEMENTED for a type or size that it does not cover.
  absl::Status (*run)(const Args&, ExecContext&);
};

// The fastest implementation that a machine with `isa` can run. Requires that the list has one.
template <class Args>
const Impl<Args>& PickImpl(std::span<const Impl<Args>> impls, Isa isa) {
  const Impl<Args>* best = nullptr;
  for (const Impl<Args>& impl : impls) {
    if (!impl.reference && impl.isa <= isa && (best == nullptr || best->isa <= impl.isa)) {
      best = &impl;
    }
  }
  QUIRE_CHECK(best != nullptr);
  return *best;
}

}  // namespace quire

#endif  // QUIRE_KERNELS_COMMON_IMPL_H_
