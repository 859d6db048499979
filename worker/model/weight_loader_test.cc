// Packed weights against the checkpoint's own values: forms, fusing, tied tables, un-permuted rows.
#include "worker/model/weight_loader.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/fp.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/test_files.h"
#include "worker/model/gguf_quants.h"
#include "worker/model/safetensors.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

std::vector<float> Row(const PackedMatrix& matrix, int64_t row) {
  std::vector<float> values(matrix.k);
  DequantizeRow(matrix, row, values.data());
  return values;
}

// A checkpoint on disk, opened a second time to compare with.
struct Checkpoint {
  test::TempDir directory;
  TensorFiles files;
  std::unique_ptr<Model> model;
  absl::Status status;

  Checkpoint(const test::RandomCheckpoint& spec, const std::string& weights_dtype,
             Isa isa = Isa::kPortable, int num_threads = 2) {
    status = test::WriteRandomCheckpoint(directory.path(), spec);
    EXPECT_TRUE(status.ok()) << status;
    files = *OpenSafetensorsDirectory(directory.path());
    LoadOptions options;
    options.path = directory.path();
    options.weights_dtype = weights_dtype;
    options.isa = isa;
    options.num_threads = num_threads;
    auto loaded = LoadModel(options);
    status = loaded.status();
    if (loaded.ok()) model = std::move(loaded).value();
  }

  std::vector<float> FileRow(const std::string& name, int64_t row) const {
    const TensorInfo* t = files.Find(name);
    EXPECT_NE(t, nullptr) << name;
    const int64_t k = t->shape.back();
    std::vector<float> values(k);
    const int64_t row_bytes = k * t->type.block_bytes;
    DequantizeToF32(t->type.type, files.Data(*t) + row * row_bytes, k, values.data());
    if (const TensorInfo* scale = files.Find(name + "_scale_inv"); scale != nullptr) {
      const int64_t blocks = scale->shape[1];
      std::vector<float> scales(scale->num_elements());
      DequantizeToF32(scale->type.type, files.Data(*scale), scale->num_elements(), scales.data());
      for (int64_t i = 0; i < k; ++i) values[i] *= scales[row / 128 * blocks + i / 128];
    }
    return values;
  }

  // Largest relative error of the packed rows of `matrix`, parts one after the other.
  double WorstRowError(const PackedMatrix& matrix, const std::vector<std::string>& parts) const {
    double worst = 0;
    int64_t row = 0;
    for (const std::string& part : parts) {
      for (int64_t r = 0; r < files.Find(part)->shape[0]; ++r, ++row) {
        const std::vector<float> want = FileRow(part, r), got = Row(matrix, row);
        double error = 0, norm = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          error += (got[i] - want[i]) * (got[i] - want[i]);
          norm += want[i] * want[i];
        }
        worst = std::max(worst, std::sqrt(error / norm));
      }
    }
    EXPECT_EQ(row, matrix.n);
    return worst;
  }
};

// Largest relative error of a row that each form may have. A step of a uniform distribution's range
// 2A / n errs by step / sqrt(12) in the mean, its values have A / sqrt(3): 1 / n, here with a third
// more room (n = 254 and 15). 0 is bit for bit.
struct FormCase {
  const char* dtype;
  const char* weights_dtype;
  WeightForm form, head_form;
  const char* weights;
  double max_error;
};
constexpr FormCase kForms[] = {
    {"BF16", "auto", WeightForm::kBf16, WeightForm::kBf16, "bf16", 0},
    {"F16", "auto", WeightForm::kBf16, WeightForm::kBf16, "bf16", 0x1p-8},
    {"F32", "auto", WeightForm::kF32, WeightForm::kF32, "f32", 0},
    {"F32", "bf16", WeightForm::kBf16, WeightForm::kBf16, "bf16", 0x1p-8},
    {"BF16", "f32", WeightForm::kF32, WeightForm::kF32, "f32", 0},
    {"F16", "f32", WeightForm::kF32, WeightForm::kF32, "f32", 0},
    {"BF16", "int8", WeightForm::kInt8Channel, WeightForm::kInt8Channel, "int8", 0.006},
    {"F32", "int8", WeightForm::kInt8Channel, WeightForm::kInt8Channel, "int8", 0.006},
    {"BF16", "int4", WeightForm::kInt4Group32Min, WeightForm::kInt8Channel, "int4", 0.09},
};

TEST(WeightLoader, FormsAndFusedRows) {
  for (const FormCase& c : kForms) {
    for (const char* arch : {"qwen3", "qwen2", "llama"}) {
      for (Isa isa : {Isa::kPortable, Isa::kAvx512}) {
        SCOPED_TRACE(testing::Message() << c.dtype << " as " << c.weights_dtype << ", " << arch
                                        << ", packed for " << IsaName(isa));
        const Checkpoint checkpoint(
            {.config_json = test::TinyConfigJson(arch, 16), .dtype = c.dtype}, c.weights_dtype,
            isa);
        ASSERT_TRUE(checkpoint.status.ok()) << checkpoint.status;
        const Model& model = *checkpoint.model;
        EXPECT_EQ(model.weights, c.weights);
        ASSERT_EQ(model.layers.size(), 2u);
        for (int i = 0; i < 2; ++i) {
          const std::string p = absl::StrCat("model.layers.", i, ".");
          const LayerWeights& layer = model.layers[i];
          EXPECT_EQ(layer.qkv.form, c.form);
          EXPECT_LE(checkpoint.WorstRowError(
                        layer.qkv, {p + "self_attn.q_proj.weight", p + "self_attn.k_proj.weight",
                                    p + "self_attn.v_proj.weight"}),
                    c.max_error);
          EXPECT_LE(checkpoint.WorstRowError(
                        layer.gate_up, {p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight"}),
                    c.max_error);
          EXPECT_LE(checkpoint.WorstRowError(layer.down, {p + "mlp.down_proj.weight"}),
                    c.max_error);
          EXPECT_LE(checkpoint.WorstRowError(layer.o, {p + "self_attn.o_proj.weight"}),
                    c.max_error);
          EXPECT_EQ(layer.input_norm, checkpoint.FileRow(p + "input_layernorm.weight", 0));
          EXPECT_EQ(layer.post_attention_norm,
                    checkpoint.FileRow(p + "post_attention_layernorm.weight", 0));
          EXPECT_EQ(layer.q_norm.empty(), std::string(arch) != "qwen3");
          EXPECT_EQ(layer.qkv_bias.size(), std::string(arch) == "qwen2" ? 128u : 0u);
        }
        EXPECT_EQ(model.head.form, c.head_form);
        EXPECT_LE(checkpoint.WorstRowError(model.head, {"lm_head.weight"}), c.max_error);
        const bool f32 = c.form == WeightForm::kF32;
        EXPECT_EQ(model.embedding.form, f32 ? WeightForm::kF32 : WeightForm::kBf16);
        EXPECT_LE(checkpoint.WorstRowError(model.embedding, {"model.embed_tokens.weight"}),
                  std::string(c.dtype) == "BF16" || f32 ? 0 : 0x1p-8);
        EXPECT_EQ(model.final_norm, checkpoint.FileRow("model.norm.weight", 0));
      }
    }
  }
}

TEST(WeightLoader, QkvBiasIsFusedInOrder) {
  const Checkpoint checkpoint({.config_json = test::TinyConfigJson("qwen2", 16)}, "auto");
  ASSERT_TRUE(checkpoint.status.ok()) << checkpoint.status;
  std::vector<float> want;
  for (const char* part : {"q", "k", "v"}) {
    const std::string name = absl::StrCat("model.layers.1.self_attn.", part, "_proj.bias");
    const std::vector<float> bias = checkpoint.FileRow(name, 0);
    want.insert(want.end(), bias.begin(), bias.end());
  }
  EXPECT_EQ(checkpoint.model->layers[1].qkv_bias, want);
}

TEST(WeightLoader, TiedHeadIsTheEmbedding) {
  std::string config = test::TinyConfigJson("qwen3", 16);
  config.insert(1, "\"tie_word_embeddings\": true, ");
  const size_t second = config.rfind("\"tie_word_embeddings\"");
  if (second > 1) {  // the default names it too
    config = test::TinyConfigJson("qwen3", 16);
    const size_t at = config.find("false", config.find("tie_word_embeddings"));
    ASSERT_NE(at, std::string::npos);
    config.replace(at, 5, "true");
  }
  const Checkpoint checkpoint({.config_json = config}, "int8");
  ASSERT_TRUE(checkpoint.status.ok()) << checkpoint.status;
  const Model& model = *checkpoint.model;
  EXPECT_TRUE(model.config.tied_embeddings);
  EXPECT_EQ(model.embedding.data, model.head.data);
  EXPECT_EQ(model.head.form, WeightForm::kInt8Channel);
  EXPECT_LE(checkpoint.WorstRowError(model.embedding, {"model.embed_tokens.weight"}), 0.006);
}

TEST(WeightLoader, Fp8BlocksKeepTheirCodes) {
  const std::string config = test::TinyConfigJson("qwen3", 128, 4, 2, 2, 256, 384);
  const std::string fp8 =
      R"("quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
         "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, )";
  for (const char* weights_dtype : {"auto", "f32"}) {
    SCOPED_TRACE(weights_dtype);
    const Checkpoint checkpoint(
        {.config_json = absl::StrCat("{", fp8, config.substr(1)), .fp8 = true}, weights_dtype);
    ASSERT_TRUE(checkpoint.status.ok()) << checkpoint.status;
    const Model& model = *checkpoint.model;
    const bool is_auto = std::string(weights_dtype) == "auto";
    EXPECT_EQ(model.layers[0].qkv.form, is_auto ? WeightForm::kFp8Block128 : WeightForm::kF32);
    EXPECT_EQ(model.weights, is_auto ? "fp8" : "f32");
    EXPECT_EQ(model.config.weights_dtype, "fp8");
    const std::string p = "model.layers.1.";
    EXPECT_LE(checkpoint.WorstRowError(model.layers[1].qkv, {p + "self_attn.q_proj.weight",
                                                             p + "self_attn.k_proj.weight",
                                                             p + "self_attn.v_proj.weight"}),
              0x1p-24);
    EXPECT_LE(checkpoint.WorstRowError(model.layers[1].gate_up,
                                       {p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight"}),
              0x1p-24);
  }
}

TEST(WeightLoader, Fp8PartsOffTheBlockGridBecomeBf16) {
  const std::string config = test::TinyConfigJson("qwen3", 16, 4, 2, 1, 128, 160);
  const std::string fp8 =
      R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, )";
  const Checkpoint checkpoint(
      {.config_json = absl::StrCat("{", fp8, config.substr(1)), .fp8 = true}, "auto");
  ASSERT_TRUE(checkpoint.status.ok()) << checkpoint.status;
  EXPECT_EQ(checkpoint.model->layers[0].qkv.form, WeightForm::kBf16);
  EXPECT_EQ(checkpoint.model->layers[0].down.form, WeightForm::kFp8Block128);
  EXPECT_THAT(checkpoint.model->warnings, testing::Contains(HasSubstr("no multiple of 128")));
}

TEST(WeightLoader, AnyNumberOfThreadsPacksTheSameBytes) {
  const test::RandomCheckpoint spec{.config_json =
                                        test::TinyConfigJson("qwen3", 32, 6, 2, 2, 96, 288, 517)};
  for (const char* weights_dtype : {"auto", "int8", "int4"}) {
    const Checkpoint one(spec, weights_dtype, Isa::kAvx2, 1),
        many(spec, weights_dtype, Isa::kAvx2, 5);
    ASSERT_TRUE(one.status.ok()) << one.status;
    ASSERT_TRUE(many.status.ok()) << many.status;
    ASSERT_EQ(one.model->packed_bytes, many.model->packed_bytes);
    EXPECT_EQ(
        std::memcmp(one.model->memory.data(), many.model->memory.data(), one.model->packed_bytes),
        0);
    EXPECT_EQ(one.model->digest, many.model->digest);
  }
}

// Staging is what loading takes beyond the packed weights: the files are mapped and given back.
TEST(WeightLoader, StagingStaysWithin15PercentOfThePackedWeights) {
  const std::string config = test::TinyConfigJson("qwen3", 64, 4, 2, 2, 320, 640, 1024);
  for (const char* dtype : {"BF16", "F32"}) {
    test::TempDir directory;
    ASSERT_TRUE(
        test::WriteRandomCheckpoint(directory.path(), {.config_json = config, .dtype = dtype})
            .ok());
    const auto files = OpenSafetensorsDirectory(directory.path());
    const auto header = LoadModelHeader(directory.path());
    ASSERT_TRUE(files.ok() && header.ok()) << files.status() << header.status();
    for (const char* weights_dtype : {"auto", "f32", "bf16", "int8", "int4"}) {
      SCOPED_TRACE(testing::Message() << dtype << " as " << weights_dtype);
      Model model;
      model.config = (*header)->config;
      WeightLoadOptions options;
      options.weights_dtype = weights_dtype;
      options.num_threads = 2;
      options.isa = Isa::kAvx512;
      std::vector<std::pair<int64_t, int64_t>> progress;
      options.progress = [&](int64_t done, int64_t total) { progress.emplace_back(done, total); };
      WeightLoadStats stats;
      const absl::Status status = LoadWeights(*files, options, &model, &stats);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_LE(stats.staging_bytes, model.packed_bytes * 15 / 100);
      ASSERT_FALSE(progress.empty());
      for (size_t i = 1; i < progress.size(); ++i) {
        EXPECT_GE(progress[i].first, progress[i - 1].first);
        EXPECT_EQ(progress[i].second, model.packed_bytes);
      }
      EXPECT_EQ(progress.back().first, model.packed_bytes);
    }
  }
}

TEST(WeightLoader, WrongShapesNameTensorAndConfiguration) {
  test::TempDir directory;
  ASSERT_TRUE(test::WriteRandomCheckpoint(directory.path(),
                                          {.config_json = test::TinyConfigJson("llama", 16)})
                  .ok());
  std::ofstream(directory.path() + "/config.json") << test::TinyConfigJson("llama", 32);
  LoadOptions options;
  options.path = directory.path();
  const auto model = LoadModel(options);
  ASSERT_FALSE(model.ok());
  for (const char* part :
       {"q_proj.weight", "[64, 64]", "[128, 64]", "head_dim 32", "config.json"}) {
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
  }
}

TEST(WeightLoader, UnknownWeightsDtypeIsRefused) {
  const Checkpoint checkpoint({.config_json = test::TinyConfigJson("llama", 16)}, "int3");
  EXPECT_EQ(checkpoint.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(checkpoint.status.message()), HasSubstr("int3"));
}

TEST(WeightLoader, RowsThatFitNoGroupAreRefused) {
  const Checkpoint checkpoint({.config_json = test::TinyConfigJson("llama", 16, 4, 2, 1, 48, 96)},
                              "int4");
  EXPECT_EQ(checkpoint.status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(checkpoint.status.message()), HasSubstr("q_proj.weight"));
}

}  // namespace
}  // namespace quire
