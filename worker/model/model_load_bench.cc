// Time to load a model: SmolLM2 (GGUF, Q4_1) and a random checkpoint of Qwen3-0.6B's shape (BF16),
// with the files in the page cache; with the digest kept from an earlier load and without.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <optional>
#include <string>

#include "common/status_macros.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/test_files.h"
#include "worker/model/model.h"
#include "worker/model/model_digest.h"

namespace quire {
namespace {

void LoadLoop(benchmark::State& state, const std::string& path, const char* weights_dtype) {
  const bool keep_digest = state.range(0) != 0;
  int64_t packed_bytes = 0;
  for (auto _ : state) {
    if (!keep_digest) {
      state.PauseTiming();
      for (const std::string& kept : DigestCachePaths(path)) std::filesystem::remove(kept);
      state.ResumeTiming();
    }
    LoadOptions options;
    options.path = path;
    options.weights_dtype = weights_dtype;
    options.isa = DetectIsa();
    options.num_threads = 2;
    const auto model = LoadModel(options);
    if (!model.ok()) {
      state.SkipWithError(std::string(model.status().message()).c_str());
      return;
    }
    packed_bytes = (*model)->packed_bytes;
  }
  state.SetBytesProcessed(state.iterations() * packed_bytes);
  state.counters["packed_MiB"] = static_cast<double>(packed_bytes) / (1 << 20);
}

void SmolLm2(benchmark::State& state) {
  const std::optional<std::string> path = test::SmolLm2Path();
  if (!path) return state.SkipWithError("no SmolLM2: run scripts/fetch_model.sh smollm2-135m");
  LoadLoop(state, *path, "auto");
}
BENCHMARK(SmolLm2)->Arg(0)->Arg(1)->ArgName("kept_digest")->Unit(benchmark::kMillisecond);

void Qwen3Shape06B(benchmark::State& state, const char* weights_dtype) {
  static const auto* const directory = [] {
    const auto* made = new test::TempDir;
    std::string config = test::TinyConfigJson("qwen3", 128, 16, 8, 28, 1024, 3072, 151936);
    const size_t at = config.find("false", config.find("tie_word_embeddings"));
    if (at != std::string::npos) config.replace(at, 5, "true");
    QUIRE_CHECK(test::WriteRandomCheckpoint(made->path(), {.config_json = config}).ok());
    return made;
  }();
  LoadLoop(state, directory->path(), weights_dtype);
}
BENCHMARK_CAPTURE(Qwen3Shape06B, auto, "auto") -> Arg(0) -> Arg(1) -> ArgName("kept_digest")
    -> Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Qwen3Shape06B, int8, "int8")
    ->Arg(1)
    ->ArgName("kept_digest")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
