#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kernels/swiglu/swiglu.h"

namespace quire {
namespace {

void BM_Swiglu(benchmark::State& state, const Impl<SwigluArgs>& impl) {
  const int64_t tokens = state.range(0), inner = state.range(1);
  std::vector<float> x(tokens * 2 * inner, 0.5f), y(tokens * inner);
  SwigluArgs args{x.data(), 2 * inner, y.data(), inner, tokens, inner};
  ThreadPool pool(static_cast<int>(state.range(2)));
  ScratchArena scratch({});
  ExecContext context{pool, scratch};
  for (auto _ : state) {
    if (!impl.run(args, context).ok()) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * tokens * inner);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  for (const auto& impl : quire::SwigluImpls()) {
    if (impl.isa > quire::DetectIsa()) continue;
    benchmark::RegisterBenchmark((std::string("swiglu/") + impl.name).c_str(),
                                 [&impl](benchmark::State& s) { quire::BM_Swiglu(s, impl); })
        ->ArgNames({"tokens", "inner", "threads"})
        ->Args({1, 3072, 1})
        ->Args({16, 3072, 1})
        ->Args({256, 3072, 1})
        ->Args({256, 3072, 2})
        ->UseRealTime();
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
