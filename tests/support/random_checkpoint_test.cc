#include "tests/support/random_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/parity_golden.h"
#include "tests/support/test_files.h"

namespace quire::test {
namespace {

// The script that made the goldens and this writer must agree on every byte.
TEST(RandomCheckpoint, SameBytesAsTheGoldensScript) {
  int compared = 0;
  for (const std::string& name : ParityGoldenNames("")) {
    if (name == "smollm2_wikitext2") continue;
    const ParityGolden golden = LoadParityGolden(name);
    if (golden.sha256.empty()) continue;
    SCOPED_TRACE(name);
    TempDir dir;
    std::string sha256;
    ASSERT_TRUE(WriteRandomCheckpoint(dir.path(), golden.checkpoint, &sha256).ok());
    EXPECT_EQ(sha256, golden.sha256);
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST(RandomCheckpoint, ShardsHoldTheSameTensors) {
  RandomCheckpoint spec{.config_json = TinyConfigJson("qwen3", 64)};
  TempDir one, three;
  std::string a, b;
  ASSERT_TRUE(WriteRandomCheckpoint(one.path(), spec, &a).ok());
  spec.num_files = 3;
  ASSERT_TRUE(WriteRandomCheckpoint(three.path(), spec, &b).ok());
  EXPECT_EQ(a, b);
  EXPECT_TRUE(std::filesystem::exists(three.path() + "/model-00002-of-00003.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(three.path() + "/model.safetensors.index.json"));
}

}  // namespace
}  // namespace quire::test
