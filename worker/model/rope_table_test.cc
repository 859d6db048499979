#include "worker/model/rope_table.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_files.h"
#include "worker/model/hf_config.h"

namespace quire {
namespace {

TEST(RopeTable, MatchesTransformers) {
  const auto goldens =
      nlohmann::json::parse(test::ReadSourceFile("tests/golden/rope_table/rope_table.json"));
  ASSERT_EQ(goldens.size(), 9u);
  for (const auto& [name, golden] : goldens.items()) {
    SCOPED_TRACE(name);
    const auto config = ParseHfConfig(golden["config"].dump(), "config.json", "", "");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_NEAR(RopeAttentionFactor(*config), golden["attention_factor"].get<double>(), 1e-7);
    const auto want = golden["inv_freq"].get<std::vector<double>>();
    const std::vector<double> got = RopeInverseFrequencies(*config);
    ASSERT_EQ(got.size(), want.size());
    // pow in F32 is off by a few units of 2^-24; Llama 3's blend subtracts and loses a few bits.
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], want[i] * 4e-6) << i;

    const auto table = RopeTable::Create(*config, 1001);
    ASSERT_TRUE(table.ok()) << table.status();
    const auto half = static_cast<int64_t>(want.size());
    const auto positions = golden["positions"].get<std::vector<int64_t>>();
    for (size_t p = 0; p < positions.size(); ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t at = positions[p] * half + i;
        const double tolerance = 2e-6 + static_cast<double>(positions[p]) * want[i] * 2e-6;
        ASSERT_NEAR(table->cos()[at], golden["cos"][p][i].get<double>(), tolerance)
            << "position " << positions[p] << ", dimension " << i;
        ASSERT_NEAR(table->sin()[at], golden["sin"][p][i].get<double>(), tolerance)
            << "position " << positions[p] << ", dimension " << i;
      }
    }
  }
}

TEST(RopeTable, FreqFactorsDivideTheFrequencies) {
  ModelConfig config;
  config.head_size = 16;
  const std::vector<double> plain = RopeInverseFrequencies(config);
  EXPECT_DOUBLE_EQ(plain[0], 1);
  EXPECT_DOUBLE_EQ(plain[4], 1e-2);  // 10000^(-8/16)
  config.rope_scaling.freq_factors = {1, 1, 1, 1, 2, 4, 8, 8};
  const std::vector<double> scaled = RopeInverseFrequencies(config);
  for (int i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(scaled[i], plain[i] / config.rope_scaling.freq_factors[i]);
  }
}

TEST(RopeTable, FarPositionsKeepTheirAngle) {
  ModelConfig config;
  config.head_size = 16;
  const auto table = RopeTable::Create(config, 100'001);
  ASSERT_TRUE(table.ok());
  EXPECT_FLOAT_EQ(table->cos()[100'000 * 8], static_cast<float>(std::cos(1e5)));
  EXPECT_FLOAT_EQ(table->sin()[100'000 * 8 + 4], static_cast<float>(std::sin(1e3)));
}

TEST(RopeTable, MaxPositionsIsChecked) {
  ModelConfig config;
  config.head_size = 16;
  for (int64_t bad : {int64_t{-1}, int64_t{0}, int64_t{1} << 40}) {
    EXPECT_EQ(RopeTable::Create(config, bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quire
