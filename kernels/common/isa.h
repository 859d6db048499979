// Which instruction set a kernel was compiled for, and which the machine has.
//
// A SIMD source is compiled once per instruction set with the macro QUIRE_ISA set to portable, avx2,
// avx512 or avx512sim (the AVX-512 source run through SIMDe, in tests only); it puts its functions
// into the namespace quire::QUIRE_ISA. The choice among them is made once, at start-up.
#ifndef QUIRE_KERNELS_COMMON_ISA_H_
#define QUIRE_KERNELS_COMMON_ISA_H_

#include <string>

#include "absl/status/statusor.h"

namespace quire {

// Ascending: a machine that has one has all before it.
enum class Isa {
  kPortable,  // plain C++, any x86-64 (or other) machine
  kAvx2,      // AVX2, FMA, F16C
  kAvx512,    // AVX-512 F, BW, VL, DQ, VNNI, BF16, VBMI
};

const char* IsaName(Isa isa);  // "portable", "avx2", "avx512"

// Errors: INVALID_ARGUMENT naming the value and the known names.
absl::StatusOr<Isa> ParseIsa(const std::string& name);

// The best that this machine's processor and operating system support.
Isa DetectIsa();

}  // namespace quire

#endif  // QUIRE_KERNELS_COMMON_ISA_H_
