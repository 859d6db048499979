// What KV precision buys: tokens in the same bytes.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/engine_harness.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/test_files.h"

namespace quire::test {
namespace {

constexpr int64_t kPoolBytes = 8 << 20;

std::shared_ptr<const Model> TinyModel(const TempDir& dir, int head_size) {
  RandomCheckpoint checkpoint;
  checkpoint.config_json = TinyConfigJson("qwen3", head_size);
  EXPECT_TRUE(WriteRandomCheckpoint(dir.path(), checkpoint).ok());
  return LoadTestModel(dir.path());
}

// A head's token is 2 D bytes in BF16, D + 2 in FP8 (the scale), for K and V alike.
TEST(KvMemory, Fp8HoldsTwoDByDPlusTwoTimesTheTokens) {
  for (int head_size : {16, 64, 80, 96, 128}) {
    SCOPED_TRACE(head_size);
    TempDir dir;
    const std::shared_ptr<const Model> model = TinyModel(dir, head_size);
    int32_t tokens[3] = {};
    int i = 0;
    for (KvDtype kv : {KvDtype::kBf16, KvDtype::kFp8E4m3, KvDtype::kFp8E5m2}) {
      EngineHarness engine(model, {.kv_dtype = kv, .kv_memory_bytes = kPoolBytes});
      EXPECT_LE(engine.backend().num_blocks() * engine.backend().kv_layout().page_bytes(),
                kPoolBytes);
      tokens[i++] = engine.backend().num_blocks() * 16;
    }
    const double want = 2.0 * head_size / (head_size + 2);
    // Whole blocks only: one block of rounding.
    EXPECT_NEAR(static_cast<double>(tokens[1]) / tokens[0], want, want * 32 / tokens[0]);
    EXPECT_EQ(tokens[1], tokens[2]);
  }
}

// The tokens are really there: as many sequences as fit run without a preemption, and more do not.
TEST(KvMemory, SequencesThatFitRunTogether) {
  TempDir dir;
  const std::shared_ptr<const Model> model = TinyModel(dir, 128);
  int32_t fit[2] = {};
  int i = 0;
  for (KvDtype kv : {KvDtype::kBf16, KvDtype::kFp8E4m3}) {
    SCOPED_TRACE(KvDtypeName(kv));
    // 40 blocks of BF16.
    const int64_t page = KvLayout{KvDtype::kBf16, 16, 2, 2, 128}.page_bytes();
    HarnessOptions options{.kv_dtype = kv, .kv_memory_bytes = 40 * page, .max_model_len = 64};
    // 60 tokens have KV when the last one is sampled: 4 blocks a sequence.
    auto run = [&](int32_t count) {
      EngineHarness engine(model, options);
      std::vector<HarnessRequest> requests;
      for (int32_t r = 0; r < count; ++r) {
        std::vector<int32_t> prompt(30, r);
        prompt[0] = 255 - r;
        requests.push_back({.prompt = std::move(prompt), .sampling = Greedy(31)});
      }
      for (const HarnessResult& r : engine.Run(requests)) {
        EXPECT_TRUE(r.status.ok()) << r.status;
        EXPECT_EQ(r.choices[0].tokens.size(), 31u);
      }
      return engine.stats().preemptions;
    };
    fit[i] = EngineHarness(model, options).backend().num_blocks() / 4;
    EXPECT_EQ(run(fit[i]), 0);
    EXPECT_GT(run(fit[i] + 2), 0);
    ++i;
  }
  EXPECT_EQ(fit[0], 10);
  EXPECT_EQ(fit[1], 19);  // 40 * 256 / 130 blocks = 78.7
}

}  // namespace
}  // namespace quire::test
