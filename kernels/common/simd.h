// The one include for vector intrinsics. In the simulated build AVX-512 intrinsics come from SIMDe
// (plus what SIMDe 0.7.4 lacks, in avx512_shim.h) so that AVX-512 sources run on AVX2 machines.
// Inline assembly must sit behind #if !defined(QUIRE_AVX512_SIMULATED).
#ifndef QUIRE_KERNELS_COMMON_SIMD_H_
#define QUIRE_KERNELS_COMMON_SIMD_H_

#if defined(QUIRE_AVX512_SIMULATED)
#include "kernels/common/avx512_shim.h"
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

// 1 where the AVX-512 source is to be compiled, native or simulated.
#if defined(QUIRE_AVX512_SIMULATED) || defined(__AVX512BF16__)
#define QUIRE_SIMD_AVX512 1
#else
#define QUIRE_SIMD_AVX512 0
#endif
// 1 where the AVX2 source is to be compiled (and the AVX-512 one is not).
#if !QUIRE_SIMD_AVX512 && defined(__AVX2__)
#define QUIRE_SIMD_AVX2 1
#else
#define QUIRE_SIMD_AVX2 0
#endif

#define QUIRE_UNROLL _Pragma("GCC unroll 16")

#endif  // QUIRE_KERNELS_COMMON_SIMD_H_
