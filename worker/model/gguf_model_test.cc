// GGUF files as models: metadata keys, mixed block types in fused matrices, interleaved rows.
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/fp.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test_files.h"
#include "worker/model/gguf.h"
#include "worker/model/gguf_config.h"
#include "worker/model/gguf_quants.h"
#include "worker/model/model.h"
#include "worker/model/rope_table.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 256, kInner = 512, kVocab = 64, kHeads = 4, kKvHeads = 2, kHead = 64;

struct BlockType {
  uint32_t id;
  int64_t elements, bytes;
  std::vector<int64_t> scales;  // offsets of F16 fields
};
const std::map<std::string, BlockType>& BlockTypes() {
  static const auto* const types = new std::map<std::string, BlockType>{
      {"F32", {0, 1, 4, {}}},           {"Q4_0", {2, 32, 18, {0}}},
      {"Q4_1", {3, 32, 20, {0, 2}}},    {"Q5_0", {6, 32, 22, {0}}},
      {"Q5_1", {7, 32, 24, {0, 2}}},    {"Q8_0", {8, 32, 34, {0}}},
      {"Q4_K", {12, 256, 144, {0, 2}}}, {"Q5_K", {13, 256, 176, {0, 2}}},
      {"Q6_K", {14, 256, 210, {208}}},  {"BF16", {30, 1, 2, {}}},
  };
  return *types;
}

// Random codes with scales that give weights of a sane size.
std::string RandomBlocks(const BlockType& type, int64_t count, std::mt19937_64& rng) {
  std::string bytes(count / type.elements * type.bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng());
  for (size_t block = 0; block < bytes.size(); block += type.bytes) {
    for (int64_t offset : type.scales) {
      const uint16_t scale = F32ToF16(0.001f + static_cast<float>(rng() % 100) * 1e-5f);
      std::memcpy(bytes.data() + block + offset, &scale, 2);
    }
    if (type.id == 0) {
      const float value = static_cast<float>(rng() % 1000) * 1e-3f - 0.5f;
      std::memcpy(bytes.data() + block, &value, 4);
    }
    if (type.id == 30) {
      const uint16_t value = F32ToBf16(static_cast<float>(rng() % 1000) * 1e-3f - 0.5f);
      std::memcpy(bytes.data() + block, &value, 2);
    }
  }
  return bytes;
}

// A file of one layer whose matrices have the named types ("" = left out).
class GgufModel : public testing::Test {
 protected:
  GgufModel()
      : types_{{"token_embd", "Q8_0"}, {"output", ""},     {"attn_q", "Q4_K"},
               {"attn_k", "Q4_K"},     {"attn_v", "Q6_K"}, {"attn_output", "Q5_K"},
               {"ffn_gate", "Q4_0"},   {"ffn_up", "Q4_1"}, {"ffn_down", "Q5_0"}} {}

  void AddConfig(const std::string& arch) {
    writer_.AddString("general.architecture", arch);
    const std::string p = arch + ".";
    writer_.AddU32(p + "block_count", 1);
    writer_.AddU32(p + "context_length", 4096);
    writer_.AddU32(p + "embedding_length", kHidden);
    writer_.AddU32(p + "feed_forward_length", kInner);
    writer_.AddU32(p + "attention.head_count", kHeads);
    writer_.AddU32(p + "attention.head_count_kv", kKvHeads);
    writer_.AddF32(p + "attention.layer_norm_rms_epsilon", 1e-5f);
    writer_.AddF32(p + "rope.freq_base", 500000.0f);
  }
  void AddTensors() {
    std::mt19937_64 rng(7);
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t k) {
      const std::string type = types_[name];
      if (type.empty()) return;
      const bool global = name == "token_embd" || name == "output";
      writer_.AddTensor(absl::StrCat(global ? "" : "blk.0.", name, ".weight"), {rows, k},
                        BlockTypes().at(type).id,
                        RandomBlocks(BlockTypes().at(type), rows * k, rng));
    };
    const auto vector = [&](const std::string& name, int64_t count) {
      writer_.AddTensor(name, {count}, 0, RandomBlocks(BlockTypes().at("F32"), count, rng));
    };
    matrix("token_embd", kVocab, kHidden);
    matrix("output", kVocab, kHidden);
    matrix("attn_q", kHeads * kHead, kHidden);
    matrix("attn_k", kKvHeads * kHead, kHidden);
    matrix("attn_v", kKvHeads * kHead, kHidden);
    matrix("attn_output", kHidden, kHeads * kHead);
    matrix("ffn_gate", kInner, kHidden);
    matrix("ffn_up", kInner, kHidden);
    matrix("ffn_down", kHidden, kInner);
    vector("output_norm.weight", kHidden);
    vector("blk.0.attn_norm.weight", kHidden);
    vector("blk.0.ffn_norm.weight", kHidden);
  }
  absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& weights_dtype = "auto") {
    path_ = directory_.path() + "/model.gguf";
    std::ofstream(path_, std::ios::binary) << writer_.Finish();
    LoadOptions options;
    options.path = path_;
    options.weights_dtype = weights_dtype;
    options.num_threads = 2;
    return LoadModel(options);
  }
  absl::StatusOr<ModelConfig> Config() {
    path_ = directory_.path() + "/model.gguf";
    std::ofstream(path_, std::ios::binary) << writer_.Finish();
    const auto file = OpenGguf(path_);
    return file.ok() ? ParseGgufConfig(*file) : file.status();
  }

  // Largest error of a packed row against the file's, relative to the row's largest value.
  double WorstError(const PackedMatrix& matrix, int64_t first_row, const std::string& name,
                    bool interleaved = false) {
    const auto file = OpenGguf(path_);
    const TensorInfo& t = *file->files.Find(name);
    const int64_t row_bytes = t.shape[1] / t.type.block_elements * t.type.block_bytes;
    std::vector<float> want(t.shape[1]), got(t.shape[1]);
    double worst = 0;
    for (int64_t row = 0; row < t.shape[0]; ++row) {
      const int64_t in_head = row % kHead;
      const int64_t from =
          interleaved ? row - in_head + in_head % (kHead / 2) * 2 + in_head / (kHead / 2) : row;
      DequantizeToF32(t.type.type, file->files.Data(t) + from * row_bytes, t.shape[1], want.data());
      DequantizeRow(matrix, first_row + row, got.data());
      float largest = 0, error = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        largest = std::max(largest, std::fabs(want[i]));
        error = std::max(error, std::fabs(want[i] - got[i]));
      }
      worst = std::max<double>(worst, error / largest);
    }
    return worst;
  }

  std::map<std::string, std::string> types_;
  test::GgufWriter writer_;
  test::TempDir directory_;
  std::string path_;
};

// A step of 1/127 of the row's largest value or less, halved, and F16 scales.
constexpr double kInt8Error = 0.006;

TEST_F(GgufModel, MixedTypesTakeTheWidestForm) {
  AddConfig("llama");
  AddTensors();
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  const LayerWeights& layer = (*model)->layers[0];
  EXPECT_EQ(layer.qkv.form, WeightForm::kInt8Group32);
  EXPECT_LE(WorstError(layer.qkv, 0, "blk.0.attn_q.weight", true), kInt8Error);
  EXPECT_LE(WorstError(layer.qkv, kHeads * kHead, "blk.0.attn_k.weight", true), kInt8Error);
  EXPECT_LE(WorstError(layer.qkv, (kHeads + kKvHeads) * kHead, "blk.0.attn_v.weight"), kInt8Error);
  EXPECT_EQ(layer.o.form, WeightForm::kInt8Group32);
  EXPECT_LE(WorstError(layer.o, 0, "blk.0.attn_output.weight"), kInt8Error);
  EXPECT_EQ(layer.gate_up.form, WeightForm::kInt4Group32Min);
  EXPECT_LE(WorstError(layer.gate_up, 0, "blk.0.ffn_gate.weight"), 1e-6);
  EXPECT_LE(WorstError(layer.gate_up, kInner, "blk.0.ffn_up.weight"), 1e-6);
  EXPECT_EQ(layer.down.form, WeightForm::kInt8Group32);
  EXPECT_LE(WorstError(layer.down, 0, "blk.0.ffn_down.weight"), 1e-6);
  EXPECT_TRUE((*model)->config.tied_embeddings);
  EXPECT_LE(WorstError((*model)->head, 0, "token_embd.weight"), 1e-6);
  EXPECT_EQ((*model)->tokenizer, nullptr);
  EXPECT_THAT((*model)->tokenizer_error, HasSubstr("tokenizer.ggml.model"));
}

TEST_F(GgufModel, HeadAndTableOfTheirOwn) {
  types_["output"] = "Q6_K";
  types_["token_embd"] = "Q4_0";
  AddConfig("llama");
  AddTensors();
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE((*model)->config.tied_embeddings);
  EXPECT_EQ((*model)->embedding.form, WeightForm::kInt4Group32);
  EXPECT_LE(WorstError((*model)->embedding, 0, "token_embd.weight"), 1e-6);
  EXPECT_EQ((*model)->head.form, WeightForm::kInt8Group32);
  EXPECT_LE(WorstError((*model)->head, 0, "output.weight"), kInt8Error);
}

TEST_F(GgufModel, OtherWeightsDtypes) {
  AddConfig("llama");
  AddTensors();
  const struct {
    const char* dtype;
    WeightForm qkv, gate_up;
    double max_error;
  } cases[] = {
      {"f32", WeightForm::kF32, WeightForm::kF32, 1e-7},
      {"bf16", WeightForm::kBf16, WeightForm::kBf16, 0x1p-8},
      {"int8", WeightForm::kInt8Group32, WeightForm::kInt8Group32, kInt8Error},
      {"int4", WeightForm::kInt4Group32Min, WeightForm::kInt4Group32Min, 0.08},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.dtype);
    const auto model = Load(c.dtype);
    ASSERT_TRUE(model.ok()) << model.status();
    const LayerWeights& layer = (*model)->layers[0];
    EXPECT_EQ(layer.qkv.form, c.qkv);
    EXPECT_EQ(layer.gate_up.form, c.gate_up);
    EXPECT_LE(WorstError(layer.qkv, 0, "blk.0.attn_q.weight", true), c.max_error);
    EXPECT_LE(WorstError(layer.gate_up, kInner, "blk.0.ffn_up.weight"), c.max_error);
    EXPECT_LE(WorstError(layer.down, 0, "blk.0.ffn_down.weight"), c.max_error);
  }
}

TEST_F(GgufModel, OnlyTheLlamaArchitectureInterleaves) {
  for (const char* arch : {"qwen2"}) {
    writer_ = test::GgufWriter();
    AddConfig(arch);
    AddTensors();
    std::mt19937_64 rng(1);
    const std::pair<const char*, int64_t> biases[] = {
        {"q", kHeads * kHead}, {"k", kKvHeads * kHead}, {"v", kKvHeads * kHead}};
    for (const auto& [part, width] : biases) {
      writer_.AddTensor(absl::StrCat("blk.0.attn_", part, ".bias"), {width}, 0,
                        RandomBlocks(BlockTypes().at("F32"), width, rng));
    }
    const auto model = Load();
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_LE(WorstError((*model)->layers[0].qkv, 0, "blk.0.attn_q.weight"), kInt8Error);
    EXPECT_EQ((*model)->layers[0].qkv_bias.size(),
              static_cast<size_t>((kHeads + 2 * kKvHeads) * kHead));
  }
}

TEST_F(GgufModel, ConfigurationOfTheMetadata) {
  AddConfig("llama");
  writer_.AddString("llama.rope.scaling.type", "yarn");
  writer_.AddF32("llama.rope.scaling.factor", 4.0f);
  writer_.AddU32("llama.rope.scaling.original_context_length", 1024);
  writer_.AddF32("llama.rope.scaling.attn_factor", 0.5f);
  writer_.AddU32("tokenizer.ggml.eos_token_id", 5);
  writer_.AddU32("tokenizer.ggml.bos_token_id", 1);
  writer_.AddU32("tokenizer.ggml.eot_token_id", 4'000'000'000);  // outside: no token
  writer_.AddStrings("tokenizer.ggml.tokens", {"a", "b", "<|im_end|>", "<|eot_id|>"});
  writer_.AddI32s("tokenizer.ggml.token_type", {1, 1, 3, 1});
  AddTensors();
  const auto config = Config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_size, kHead);
  EXPECT_EQ(config->vocab, kVocab);
  EXPECT_EQ(config->max_position, 4096);
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(config->rope_scaling.original_max_position, 1024);
  EXPECT_NEAR(RopeAttentionFactor(*config), 0.5 * (0.1 * std::log(4.0) + 1), 1e-9);
  EXPECT_THAT(config->eos_ids, ElementsAre(5, 2));
  EXPECT_EQ(config->bos_id, 1);
}

TEST_F(GgufModel, RopeFreqsAreReadAndChecked) {
  AddConfig("llama");
  AddTensors();
  std::vector<float> factors(kHead / 2, 1);
  factors[31] = 8;
  writer_.AddTensor("rope_freqs.weight", {kHead / 2}, 0,
                    std::string(reinterpret_cast<const char*>(factors.data()), kHead / 2 * 4));
  const auto config = Config();
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->rope_scaling.freq_factors.size(), static_cast<size_t>(kHead / 2));
  EXPECT_EQ(config->rope_scaling.freq_factors[31], 8);
  EXPECT_NEAR(RopeInverseFrequencies(*config)[31], std::pow(500000.0, -62.0 / 64) / 8, 1e-12);
}

TEST_F(GgufModel, RefusalsNameTheKey) {
  const struct {
    std::function<void(test::GgufWriter&)> add;
    const char* named;
  } cases[] = {
      {[](test::GgufWriter& w) { w.AddU32("llama.attention.sliding_window", 4096); },
       "sliding_window 4096"},
      {[](test::GgufWriter& w) { w.AddU32("llama.expert_count", 8); }, "expert_count 8"},
      {[](test::GgufWriter& w) { w.AddU32("llama.rope.dimension_count", 32); },
       "rope.dimension_count 32"},
      {[](test::GgufWriter& w) { w.AddU32("llama.attention.value_length", 32); },
       "value_length 32"},
      {[](test::GgufWriter& w) { w.AddString("llama.rope.scaling.type", "longrope"); }, "longrope"},
      {[](test::GgufWriter& w) { w.AddString("llama.attention.key_length", "64"); }, "value type"},
      {[](test::GgufWriter& w) { w.AddU32("llama.attention.key_length", 128); }, "attn_q.weight"},
      {[](test::GgufWriter& w) { w.AddString("tokenizer.ggml.model", "llama"); },
       "tokenizer.ggml.model"},
      {[](test::GgufWriter& w) { w.AddTensor("rope_freqs.weight", {3}, 0, std::string(12, 1)); },
       "rope_freqs has 3"},
      {[](test::GgufWriter& w) {
         w.AddTensor("blk.0.attn_q.bias", {kHeads * kHead}, 0, std::string(kHeads * kHead * 4, 0));
       },
       "attn_q.bias"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.named);
    writer_ = test::GgufWriter();
    AddConfig("llama");
    AddTensors();
    c.add(writer_);
    const auto model = Load();
    ASSERT_FALSE(model.ok());
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(c.named));
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(path_));
  }
  for (const char* unknown : {"mamba", "qwen3moe", ""}) {
    writer_ = test::GgufWriter();
    AddConfig(unknown);
    AddTensors();
    const auto model = Load();
    EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(model.status().message()),
                HasSubstr(absl::StrCat("general.architecture \"", unknown)));
  }
}

TEST_F(GgufModel, TypesThatAreNotReadAreNamed) {
  AddConfig("llama");
  types_["ffn_down"] = "";
  AddTensors();
  writer_.AddTensor("blk.0.ffn_down.weight", {kHidden, kInner}, 10,
                    std::string(kHidden * kInner / 256 * 84, 1));
  const auto model = Load();
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("blk.0.ffn_down.weight"));
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("Q2_K"));
}

}  // namespace
}  // namespace quire
