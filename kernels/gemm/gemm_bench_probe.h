// Register-only loops at the peak rate of each instruction sequence of the AVX2 kernels, and a read
// of memory in four streams: what gemm_bench measures kernels against.
#ifndef QUIRE_KERNELS_GEMM_GEMM_BENCH_PROBE_H_
#define QUIRE_KERNELS_GEMM_GEMM_BENCH_PROBE_H_

#include <cstddef>
#include <cstdint>

namespace quire::probe {

// Operations (multiply and add count two) of one turn of each loop.
constexpr double kFmaOps = 10 * 8 * 2;
constexpr double kMadd16Ops = 10 * 16 * 2;
constexpr double kMaddubsOps = 10 * 32 * 2;

void FmaLoop(int64_t turns);                                 // F32 FMA
void Madd16Loop(int64_t turns);                              // vpmaddwd + vpaddd
void MaddubsLoop(int64_t turns);                             // vpmaddubsw + vpaddw
void ReadFourStreams(const std::byte* from, int64_t bytes);  // bytes: a multiple of 1024

}  // namespace quire::probe

#endif  // QUIRE_KERNELS_GEMM_GEMM_BENCH_PROBE_H_
