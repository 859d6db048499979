// Encode, decode and load speed with the real Qwen3 tokenizer.
//
// usage: tokenizer_bench [benchmark flags] [text files ...]
// Without files the texts of the goldens are used: English, Chinese, code and the rest.
#include <benchmark/benchmark.h>

#include <fstream>
#include <map>
#include <sstream>

#include "common/text/detokenizer.h"
#include "common/text/text_test_data.h"

namespace quire {
namespace {

void Encode(benchmark::State& state, const std::string& folder, const std::string& text) {
  const Tokenizer& tokenizer = test::RealTokenizer(folder);
  size_t tokens = 0;
  for (auto _ : state) {
    tokens = tokenizer.Encode(text, {}).size();
    benchmark::DoNotOptimize(tokens);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(tokens);
}

void Stream(benchmark::State& state, const std::string& text) {
  const Tokenizer& tokenizer = test::RealTokenizer("tokenizer_qwen3");
  const std::vector<TokenId> ids = tokenizer.Encode(text, {});
  for (auto _ : state) {
    IncrementalDetokenizer detokenizer(tokenizer);
    StopMatcher stops({"<|never|>", "\n\nUser:"});
    for (const TokenId id : ids) benchmark::DoNotOptimize(stops.Add(detokenizer.Add(id)).text);
    benchmark::DoNotOptimize(stops.Add(detokenizer.Flush()).text);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ids.size()));
}

void Load(benchmark::State& state, const std::string& folder) {
  const std::string json = test::ReadData(folder + "/tokenizer.json.xz");
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::FromHuggingFace(json, "", folder));
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::map<std::string, std::string> texts;
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    texts[argv[i]] = content.str();
  }
  if (texts.empty()) {
    for (const auto& row : test::ReadJsonLines("tokenizer_qwen3/golden.jsonl.xz")) {
      texts[row["category"].get<std::string>()] += row["text"].get<std::string>() + "\n";
    }
  }
  for (const auto& [name, text] : texts) {
    for (const char* folder : {"tokenizer_qwen3", "tokenizer_cl100k"}) {
      benchmark::RegisterBenchmark(
          ("Encode/" + std::string(folder + 10) + "/" + name).c_str(),
          [folder, text = text](benchmark::State& state) { Encode(state, folder, text); })
          ->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(("Stream/" + name).c_str(), [text =
                                                                  text](benchmark::State& state) {
      Stream(state, text);
    })->Unit(benchmark::kMillisecond);
  }
  for (const char* folder : {"tokenizer_qwen3", "tokenizer_cl100k"}) {
    benchmark::RegisterBenchmark(("Load/" + std::string(folder + 10)).c_str(),
                                 [folder](benchmark::State& state) { Load(state, folder); })
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
