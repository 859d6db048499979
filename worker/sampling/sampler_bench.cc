#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "worker/sampling/sampler.h"

namespace quire {
namespace {

constexpr int32_t kVocab = 151936;

struct Mode {
  const char* name;
  SamplingParams params;
};

std::vector<Mode> Modes() {
  std::vector<Mode> modes(8);
  modes[0].name = "greedy";
  modes[0].params.temperature = 0;
  modes[1].name = "greedy_penalised";
  modes[1].params.temperature = 0;
  modes[1].params.repetition_penalty = 1.1f;
  modes[2].name = "all";
  modes[3].name = "qwen3_default";  // its generation_config.json
  modes[3].params.temperature = 0.6f;
  modes[3].params.top_k = 20;
  modes[3].params.top_p = 0.95f;
  modes[4].name = "top_p";
  modes[4].params.temperature = 0.5f;
  modes[4].params.top_p = 0.9f;
  modes[5].name = "top_p_flat";
  modes[5].params.temperature = 3;
  modes[5].params.top_p = 0.9f;
  modes[6].name = "min_p";
  modes[6].params.min_p = 0.05f;
  modes[7].name = "logprobs20";
  modes[7].params.temperature = 0;
  modes[7].params.num_logprobs = 20;
  return modes;
}

void BM_Sample(benchmark::State& state, const Mode& mode) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> dist(0, 3);
  std::vector<float> row(kVocab), logits(kVocab);
  for (float& x : row) x = dist(rng);
  for (int i = 0; i < 8; ++i) row[rng() % kVocab] = 18.0f + static_cast<float>(i);  // as a model's
  const std::vector<int32_t> prompt(1000, 17);
  SamplerSlot slot(std::make_shared<SamplingParams>(mode.params), 0, {}, prompt, kVocab);
  int64_t index = 0;
  for (auto _ : state) {
    std::memcpy(logits.data(), row.data(), sizeof(float) * kVocab);  // included: see "copy"
    benchmark::DoNotOptimize(
        slot.Sample(logits.data(), kVocab, index++, GetLogitsKernels(DetectIsa())));
  }
}

void BM_Copy(benchmark::State& state) {
  std::vector<float> row(kVocab), logits(kVocab);
  for (auto _ : state) {
    std::memcpy(logits.data(), row.data(), sizeof(float) * kVocab);
    benchmark::ClobberMemory();
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("copy", quire::BM_Copy);
  const std::vector<quire::Mode> modes = quire::Modes();
  for (const quire::Mode& mode : modes) {
    benchmark::RegisterBenchmark((std::string("sample/") + mode.name).c_str(),
                                 [&mode](benchmark::State& s) { quire::BM_Sample(s, mode); });
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
