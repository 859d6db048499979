// What narrower weights and FP8 KV cost on the real model: perplexity of SmolLM2-135M-Instruct on
// the head of WikiText-2's test split, through prompt logprobs.
//
// Bars of the founding issue: INT8 and 4-bit weights within 1 % of the same weights dequantised,
// FP8 KV within 0.5 % of BF16 KV. F32 must be what transformers computes.

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/engine_harness.h"
#include "tests/support/test_files.h"

namespace quire::test {
namespace {

struct Scale {
  int num_windows;
  int tokens;  // of each window
};
constexpr Scale kShort{3, 256};
constexpr Scale kLong{8, 2048};

std::string Sha256OfIds(const std::vector<int32_t>& ids) {  // little-endian u32
  std::vector<unsigned char> bytes;
  for (int32_t id : ids) {
    for (int b = 0; b < 4; ++b) bytes.push_back(static_cast<unsigned char>(id >> (8 * b)));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) absl::StrAppendFormat(&hex, "%02x", digest[i]);
  return hex;
}

class Perplexity : public ::testing::TestWithParam<Scale> {
 protected:
  void SetUp() override {
    SKIP_IF_SANITIZED();
    SKIP_WITHOUT_SMOLLM2(path);
    path_ = *path;
    golden_ = nlohmann::json::parse(ReadSourceFile("tests/golden/parity/smollm2_wikitext2.json"));
    auto model = TryLoadTestModel(path_, "bf16");
    ASSERT_TRUE(model.ok()) << model.status();
    bf16_ = *std::move(model);
    ASSERT_NE(bf16_->tokenizer, nullptr) << bf16_->tokenizer_error;
    ids_ = bf16_->tokenizer->Encode(ReadSourceFile("tests/data/wikitext2/wiki.test.head.txt.gz"),
                                    {.add_special_tokens = false, .parse_special_tokens = false});
    ASSERT_EQ(ids_.size(), golden_["tokens"].get<size_t>());
    ASSERT_EQ(Sha256OfIds(ids_), golden_["ids_sha256_u32le"].get<std::string>());
  }

  // Mean negative log likelihood of a token.
  double Nll(const std::shared_ptr<const Model>& model, KvDtype kv) const {
    const Scale& scale = GetParam();
    EngineHarness engine(model, {.kv_dtype = kv,
                                 .num_blocks = (scale.tokens / 16 + 2),
                                 .num_threads = 2,
                                 .max_num_seqs = 2});
    double sum = 0;
    for (int w = 0; w < scale.num_windows; ++w) {
      const auto begin = ids_.begin() + int64_t{w} * golden_["window_tokens"].get<int64_t>();
      const HarnessResult r = engine.RunOne(
          {.prompt = std::vector<int32_t>(begin, begin + scale.tokens), .sampling = ScorePrompt()});
      EXPECT_TRUE(r.status.ok()) << r.status;
      EXPECT_EQ(r.prompt_logprobs.size(), static_cast<size_t>(scale.tokens));
      for (size_t i = 1; i < r.prompt_logprobs.size(); ++i) sum -= r.prompt_logprobs[i].logprob;
    }
    const double mean = sum / (scale.num_windows * (scale.tokens - 1));
    std::printf("%-6s weights, %-8s KV: perplexity %.4f\n", model->weights.c_str(), KvDtypeName(kv),
                std::exp(mean));
    return mean;
  }
  double Nll(const std::string& weights, KvDtype kv) const {
    auto model = TryLoadTestModel(path_, weights);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? Nll(*model, kv) : NAN;
  }
  double GoldenNll() const {
    double sum = 0;
    for (int w = 0; w < GetParam().num_windows; ++w) {
      sum +=
          golden_["nll_of_first_tokens"][static_cast<size_t>(w)][std::to_string(GetParam().tokens)]
              .get<double>();
    }
    return sum / (GetParam().num_windows * (GetParam().tokens - 1));
  }

  std::string path_;
  nlohmann::json golden_;
  std::shared_ptr<const Model> bf16_;
  std::vector<int32_t> ids_;
};

// How much larger the perplexity is, as a share of it.
double Excess(double nll, double than) { return std::exp(nll - than) - 1; }

TEST_P(Perplexity, NarrowWeights) {
  const double f32 = Nll("f32", KvDtype::kF32);
  EXPECT_LE(std::abs(Excess(f32, GoldenNll())), 1e-4) << "transformers " << GoldenNll();
  EXPECT_LE(std::abs(Excess(Nll("int8", KvDtype::kF32), f32)), 0.01);
  EXPECT_LE(std::abs(Excess(Nll("int4", KvDtype::kF32), f32)), 0.01);
  EXPECT_LE(std::abs(Excess(Nll("auto", KvDtype::kBf16), f32)), 0.01);  // what a user gets
}

TEST_P(Perplexity, Fp8Kv) {
  const double bf16 = Nll(bf16_, KvDtype::kBf16);
  EXPECT_LE(std::abs(Excess(bf16, GoldenNll())), 0.005);
  EXPECT_LE(std::abs(Excess(Nll(bf16_, KvDtype::kFp8E4m3), bf16)), 0.005);
  // e5m2 has one bit less; no bar is set for it, this one only finds a broken conversion.
  EXPECT_LE(std::abs(Excess(Nll(bf16_, KvDtype::kFp8E5m2), bf16)), 0.03);
}

INSTANTIATE_TEST_SUITE_P(Short, Perplexity, ::testing::Values(kShort));
INSTANTIATE_TEST_SUITE_P(Full, Perplexity, ::testing::Values(kLong));

}  // namespace
}  // namespace quire::test
