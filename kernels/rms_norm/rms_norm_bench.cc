#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kernels/rms_norm/rms_norm.h"

namespace quire {
namespace {

void BM_RmsNorm(benchmark::State& state, const Impl<RmsNormArgs>& impl) {
  const int64_t tokens = state.range(0), hidden = state.range(1);
  std::vector<float> x(tokens * hidden, 0.5f), w(hidden, 1.0f), y(tokens * hidden);
  RmsNormArgs args{x.data(), hidden, w.data(), y.data(), hidden, tokens, hidden, 1e-6f};
  ThreadPool pool(static_cast<int>(state.range(2)));
  ScratchArena scratch({});
  ExecContext context{pool, scratch};
  for (auto _ : state) {
    if (!impl.run(args, context).ok()) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * tokens * hidden * 8);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  for (const auto& impl : quire::RmsNormImpls()) {
    if (impl.isa > quire::DetectIsa()) continue;
    benchmark::RegisterBenchmark((std::string("rms_norm/") + impl.name).c_str(),
                                 [&impl](benchmark::State& s) { quire::BM_RmsNorm(s, impl); })
        ->ArgNames({"tokens", "hidden", "threads"})
        ->Args({1, 1024, 1})
        ->Args({1, 4096, 1})
        ->Args({16, 1024, 1})
        ->Args({16, 1024, 2})
        ->Args({32, 1024, 1})
        ->Args({32, 1024, 2})
        ->Args({256, 1024, 1})
        ->Args({256, 1024, 2})
        ->UseRealTime();
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
