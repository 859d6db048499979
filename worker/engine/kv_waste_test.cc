// KV memory that is allocated and not used, at 256 sequences with lengths from a public trace, for
// the paged and the contiguous layout. Data: tests/data/azure_llm_2023.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "worker/engine/engine_core.h"

namespace quire {
namespace {

constexpr int32_t kMaxModelLen = 8192;

struct Lengths {
  int32_t context, generated;
};

std::vector<Lengths> ReadLengths() {
  std::ifstream file(QUIRE_SOURCE_DIR "/tests/data/azure_llm_2023/lengths.csv");
  std::vector<Lengths> lengths;
  std::string line;
  std::getline(file, line);  // header
  while (std::getline(file, line)) {
    Lengths row{};
    const size_t comma = line.find(',');
    if (std::sscanf(line.c_str() + comma + 1, "%d,%d", &row.context, &row.generated) == 2) {
      lengths.push_back(row);
    }
  }
  return lengths;
}

struct Waste {
  double mean = 0, worst = 0;
};

Waste Measure(const std::vector<Lengths>& lengths, bool paged) {
  EngineOptions options;
  options.paged = paged;
  options.num_blocks = paged ? 40'000 : 256 * kMaxModelLen / 16;
  options.max_model_len = kMaxModelLen;
  options.max_num_batched_tokens = 8192;
  EngineCore core(options);
  EngineOutputs out;
  auto params = std::make_shared<SamplingParams>();
  params->ignore_eos = true;
  params->max_tokens = 400;
  for (size_t i = 0; i < lengths.size(); ++i) {
    // Sequence i has come a part of its way that differs from one to the next.
    const int32_t length =
        lengths[i].context + static_cast<int32_t>(i * lengths[i].generated / lengths.size());
    EngineRequest request;
    request.id = static_cast<RequestId>(i);
    request.sampling = params;
    for (int32_t p = 0; p < length; ++p) {
      request.prompt.push_back(static_cast<int32_t>(i * 31 + p) % 1000);
    }
    core.Submit(0, std::move(request), &out);
  }
  StepPlan plan;
  SampledToken token;
  token.token = 1;
  Waste waste;
  int num_measured = 0;
  while (num_measured < 64 && core.MakePlan(1, &plan, &out)) {
    StepResult result;
    result.step_id = plan.step_id;
    result.samples.assign(plan.samples.size(), {token});
    core.Complete(1, result, &out);
    if (plan.samples.size() < lengths.size()) continue;  // some still prefill
    ++num_measured;
    const EngineStats stats = core.stats();
    const double now =
        1 - static_cast<double>(stats.slots_used) / static_cast<double>(stats.slots_allocated);
    waste.mean += now / 64;
    waste.worst = std::max(waste.worst, now);
  }
  EXPECT_EQ(num_measured, 64);
  EXPECT_TRUE(out.finished.empty());
  return waste;
}

TEST(KvWaste, IsUnderOnePercentAt256Sequences) {
  const std::vector<Lengths> lengths = ReadLengths();
  ASSERT_EQ(lengths.size(), 256u);
  const Waste paged = Measure(lengths, true);
  const Waste contiguous = Measure(lengths, false);
  std::printf(
      "KV waste, 256 sequences: paged %.2f %% (worst step %.2f %%), contiguous to %d "
      "positions %.1f %%\n",
      100 * paged.mean, 100 * paged.worst, kMaxModelLen, 100 * contiguous.mean);
  EXPECT_LE(paged.worst, 0.01);
  EXPECT_GT(paged.worst, 0);
  EXPECT_GT(contiguous.mean, 0.5);
}

}  // namespace
}  // namespace quire
