// What the core itself costs a step: plans and results without any model.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "worker/engine/engine_core.h"

namespace quire {
namespace {

EngineOptions Options(bool caching) {
  EngineOptions options;
  options.num_blocks = 40'000;
  options.max_model_len = 32'768;
  options.max_num_batched_tokens = 8192;
  options.enable_prefix_caching = caching;
  return options;
}

void Submit(EngineCore* core, RequestId id, int32_t num_prompt, int32_t max_tokens) {
  auto params = std::make_shared<SamplingParams>();
  params->ignore_eos = true;
  params->max_tokens = max_tokens;
  EngineRequest request;
  request.id = id;
  request.credit_tokens = 1 << 30;
  request.sampling = params;
  for (int32_t p = 0; p < num_prompt; ++p) {
    request.prompt.push_back(static_cast<int32_t>((id * 7919 + p) % 100'000));
  }
  EngineOutputs out;
  core->Submit(0, std::move(request), &out);
}

// One step; false if there was none.
bool Step(EngineCore* core, StepPlan* plan, EngineOutputs* out) {
  if (!core->MakePlan(1, plan, out)) return false;
  SampledToken token;
  token.token = 1;
  StepResult result;
  result.step_id = plan->step_id;
  result.samples.assign(plan->samples.size(), {token});
  core->Complete(1, result, out);
  out->deltas.clear();
  return true;
}

void BM_DecodeStep(benchmark::State& state) {
  const int64_t num_sequences = state.range(0);
  EngineCore core(Options(state.range(1) != 0));
  for (int64_t i = 0; i < num_sequences; ++i) Submit(&core, i + 1, 500, 30'000);
  StepPlan plan;
  EngineOutputs out;
  do {
    Step(&core, &plan, &out);
  } while (static_cast<int64_t>(plan.samples.size()) < num_sequences);
  for (auto _ : state) {
    if (!Step(&core, &plan, &out) || plan.num_rows() != num_sequences) {
      state.SkipWithError("a sequence was not in the step");
      break;
    }
  }
  state.counters["ns_a_sequence"] =
      benchmark::Counter(static_cast<double>(state.iterations() * num_sequences),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_DecodeStep)
    ->ArgsProduct({{1, 32, 256}, {0, 1}})
    ->ArgNames({"seqs", "caching"})
    ->Iterations(1000);

// A prompt of which nothing is cached, from Submit to its end.
void BM_Prefill(benchmark::State& state) {
  EngineCore core(Options(state.range(1) != 0));
  const int32_t num_prompt = static_cast<int32_t>(state.range(0));
  StepPlan plan;
  EngineOutputs out;
  RequestId id = 0;
  for (auto _ : state) {
    Submit(&core, ++id, num_prompt, 1);
    while (Step(&core, &plan, &out)) {
    }
    out.finished.clear();
    out.started.clear();
  }
  state.counters["ns_a_token"] =
      benchmark::Counter(static_cast<double>(state.iterations() * num_prompt),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_Prefill)->ArgsProduct({{2048, 16'384}, {0, 1}})->ArgNames({"tokens", "caching"});

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
