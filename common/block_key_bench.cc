#include <benchmark/benchmark.h>

#include "common/block_key.h"
#include "common/sha256.h"

namespace quire {
namespace {

void BM_ChainBlockKeys(benchmark::State& state) {
  const std::vector<int32_t> tokens(4096, 1234);
  const BlockKey root = BlockKeyRoot{"m", "k", "n", "", "salt"}.Compute();
  for (auto _ : state) {
    benchmark::DoNotOptimize(ChainBlockKeys(root, "", tokens, static_cast<int>(state.range(0))));
  }
  // Items are tokens: 8 ns a token = 125 M items a second.
  state.SetItemsProcessed(state.iterations() * 4096);
}
BENCHMARK(BM_ChainBlockKeys)->Arg(16)->Arg(32);

void BM_NextBlockKey(benchmark::State& state) {  // what a decode step pays once a full block
  const std::vector<int32_t> tokens(16, 1234);
  BlockKey key = BlockKeyRoot{"m", "k", "n", "", "salt"}.Compute();
  for (auto _ : state) benchmark::DoNotOptimize(key = NextBlockKey(key, "", tokens));
}
BENCHMARK(BM_NextBlockKey);

// Two compressions, as of one block of 16 tokens, by each implementation.
void BM_Compress(benchmark::State& state) {
  if (state.range(0) != 0 && !HasShaNi()) return state.SkipWithError("no SHA-NI");
  const Sha256CompressFn compress =
      state.range(0) != 0 ? Sha256CompressShaNi : Sha256CompressPortable;
  uint8_t blocks[128] = {};
  std::array<uint32_t, 8> chain = kSha256Initial;
  for (auto _ : state) {
    compress(chain.data(), blocks, 2);
    benchmark::DoNotOptimize(chain);
  }
}
BENCHMARK(BM_Compress)->ArgName("sha_ni")->Arg(0)->Arg(1);

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
