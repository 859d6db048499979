#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kernels/rope/rope.h"

namespace quire {
namespace {

void BM_Rope(benchmark::State& state, const Impl<RopeArgs>& impl) {
  const int64_t tokens = state.range(0);
  const int32_t heads = static_cast<int32_t>(state.range(1)), size = 128;
  std::vector<float> x(tokens * heads * size, 0.5f), w(size, 1.0f);
  std::vector<float> cos(1024 * size / 2, 1.0f), sin(cos.size(), 0.0f);
  std::vector<int32_t> positions(tokens);
  for (int64_t t = 0; t < tokens; ++t) positions[t] = static_cast<int32_t>(t);
  RopeArgs args{x.data(),         heads * size, tokens,     heads, size,
                positions.data(), cos.data(),   sin.data(), 1024};
  if (state.range(2) != 0) {
    args.norm_weight = w.data();
    args.norm_eps = 1e-6f;
  }
  ThreadPool pool(static_cast<int>(state.range(3)));
  ScratchArena scratch({});
  ExecContext context{pool, scratch};
  for (auto _ : state) {
    if (!impl.run(args, context).ok()) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * tokens * heads * size * 8);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  for (const auto& impl : quire::RopeImpls()) {
    if (impl.isa > quire::DetectIsa()) continue;
    benchmark::RegisterBenchmark((std::string("rope/") + impl.name).c_str(),
                                 [&impl](benchmark::State& s) { quire::BM_Rope(s, impl); })
        ->ArgNames({"tokens", "heads", "norm", "threads"})
        ->Args({1, 16, 0, 1})
        ->Args({1, 16, 1, 1})
        ->Args({256, 16, 0, 1})
        ->Args({256, 16, 1, 1})
        ->Args({256, 16, 1, 2})
        ->UseRealTime();
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
