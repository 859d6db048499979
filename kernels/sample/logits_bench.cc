#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/sample/logits.h"

namespace quire {
namespace {

std::vector<float> Row(int64_t n) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> dist(0, 3);
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

void Run(benchmark::State& state, const std::string& what, const LogitsKernels& kernels) {
  const int64_t n = state.range(0), k = state.range(1);
  std::vector<float> x = Row(n), values(k);
  std::vector<int32_t> indices(k);
  std::vector<double> sums((n + kLogitsBlock - 1) / kLogitsBlock);
  for (auto _ : state) {
    if (what == "argmax") benchmark::DoNotOptimize(kernels.argmax(x.data(), n));
    if (what == "argmax_finite") benchmark::DoNotOptimize(kernels.argmax_finite(x.data(), n));
    if (what == "all_finite") benchmark::DoNotOptimize(kernels.all_finite(x.data(), n));
    if (what == "log_sum_exp") benchmark::DoNotOptimize(kernels.log_sum_exp(x.data(), n));
    // In place on its own results, which stay in [0, 1]: the time does not depend on values.
    if (what == "exp_weights") kernels.exp_weights(x.data(), n, 1.0f, 0.7f, sums.data());
    if (what == "top_k") {
      benchmark::DoNotOptimize(kernels.top_k(x.data(), n, k, indices.data(), values.data()));
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * n * 4);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const auto add = [](const std::string& what, const std::string& name,
                      const quire::LogitsKernels& kernels) {
    auto* b = benchmark::RegisterBenchmark(
        (what + "/" + name).c_str(),
        [what, &kernels](benchmark::State& s) { quire::Run(s, what, kernels); });
    b->ArgNames({"vocab", "k"});
    if (what == "top_k") {
      b->Args({151936, 20})->Args({151936, 1024});
    } else {
      b->Args({151936, 0});
    }
  };
  for (const char* what :
       {"argmax", "argmax_finite", "all_finite", "log_sum_exp", "exp_weights", "top_k"}) {
    add(what, "reference", quire::ReferenceLogitsKernels());
    for (quire::Isa isa : {quire::Isa::kPortable, quire::Isa::kAvx2, quire::Isa::kAvx512}) {
      if (isa <= quire::DetectIsa()) add(what, quire::IsaName(isa), quire::GetLogitsKernels(isa));
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
