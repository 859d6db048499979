// LoadModel as a whole: digest and its cache, header only, missing files, and the real SmolLM2.
#include "worker/model/model.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/test_archive.h"
#include "tests/support/test_files.h"
#include "worker/model/gguf.h"
#include "worker/model/gguf_quants.h"
#include "worker/model/model_digest.h"
#include "worker/model/safetensors.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path,
                                            const std::string& weights_dtype = "auto") {
  LoadOptions options;
  options.path = path;
  options.weights_dtype = weights_dtype;
  options.num_threads = 2;
  return LoadModel(options);
}

TEST(Model, NameAndTokenizerOfADirectory) {
  test::TempDir directory;
  const auto model = Load(test::ExtractCaseModel("tiny_qwen3", directory) + "/");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config.name, "tiny_qwen3");
  ASSERT_NE((*model)->tokenizer, nullptr);
  EXPECT_THAT((*model)->tokenizer_json, HasSubstr("\"merges\""));
  EXPECT_THAT((*model)->tokenizer_config_json, HasSubstr("chat_template"));
  EXPECT_THAT((*model)->warnings, ElementsAre());
}

TEST(Model, WithoutTokenizerItLoadsAndSaysWhy) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  fs::remove(path + "/tokenizer.json");
  const auto model = Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer, nullptr);
  EXPECT_THAT((*model)->tokenizer_error, HasSubstr("tokenizer.json"));
}

TEST(Model, BrokenTokenizerIsRefused) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  fs::resize_file(path + "/tokenizer.json", 1000);
  const auto model = Load(path);
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("tokenizer.json"));
}

TEST(Model, ChatTemplateInAFileOfItsOwn) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  std::ofstream(path + "/chat_template.jinja") << "{{ messages }}";
  const auto model = LoadModelHeader(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer->chat_template(), "{{ messages }}");
  EXPECT_THAT((*model)->tokenizer_config_json, HasSubstr("<|im_end|>"));  // the rest is kept
}

TEST(Model, APipeInPlaceOfAFileIsRefused) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  fs::remove(path + "/config.json");
  ASSERT_EQ(mkfifo((path + "/config.json").c_str(), 0600), 0);
  const auto model = LoadModelHeader(path);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("config.json"));
}

TEST(Model, HeaderTellsTheTypeOfTheFile) {
  test::TempDir directory;
  const auto model = LoadModelHeader(test::ExtractCaseModel("gguf_good", directory));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config.weights_dtype, "f32");
  EXPECT_EQ((*model)->config.name, "gguf_good");
}

TEST(Model, MissingPathsAreNotFound) {
  EXPECT_EQ(Load("/nonexistent/model").status().code(), absl::StatusCode::kNotFound);
  test::TempDir directory;
  const auto empty = Load(directory.path());
  EXPECT_EQ(empty.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(empty.status().message()), HasSubstr("config.json"));
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  const auto file = Load(path + "/model.safetensors");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  fs::remove(path + "/model.safetensors");
  const auto no_weights = Load(path);
  EXPECT_EQ(no_weights.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(no_weights.status().message()), HasSubstr("model.safetensors"));
}

TEST(Model, DigestNamesWeightsAndConfiguration) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  const auto first = Load(path);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->digest.size(), 64u);
  // Other files, header and offsets, the same tensors: the same digest.
  for (const char* same : {"st_header_padded", "st_odd_offset", "shards_odd_names"}) {
    const auto other = Load(test::ExtractCaseModel(same, directory));
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ((*other)->digest, (*first)->digest) << same;
  }
  for (const char* different : {"nan_row", "st_zero_length", "tiny_llama"}) {
    const auto other = Load(test::ExtractCaseModel(different, directory));
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE((*other)->digest, (*first)->digest) << different;
  }
}

TEST(Model, DigestIsKeptUntilAFileChanges) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  const auto header = LoadModelHeader(path);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ((*header)->digest, "");
  const auto model = Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(fs::exists(path + "/.quire-digest"));
  const auto again = LoadModelHeader(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->digest, (*model)->digest);
  EXPECT_TRUE((*again)->layers.empty());
  EXPECT_NE((*again)->tokenizer, nullptr);

  fs::last_write_time(path + "/model.safetensors", fs::file_time_type::clock::now());
  const auto touched = LoadModelHeader(path);
  ASSERT_TRUE(touched.ok()) << touched.status();
  EXPECT_EQ((*touched)->digest, "");
  // What is kept counts only if it looks like a digest.
  std::ofstream(path + "/.quire-digest") << std::string(100'000, 'x');
  const auto reloaded = Load(path);
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_EQ((*reloaded)->digest, (*model)->digest);
}

TEST(Model, DigestIsKeptElsewhereIfTheFolderCannotBeWritten) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  const auto files = OpenSafetensorsDirectory(path);
  const auto header = LoadModelHeader(path);
  ASSERT_TRUE(files.ok() && header.ok());
  const std::string digest(64, 'a');
  const std::vector<std::string> places = {path + "/no/such/folder",
                                           directory.path() + "/home/digests/x"};
  KeepDigest(places, *files, (*header)->config, digest);
  EXPECT_EQ(ReadKeptDigest(places, *files, (*header)->config), digest);
  EXPECT_TRUE(fs::exists(places[1]));
  KeepDigest({path + "/no/such/folder"}, *files, (*header)->config, digest);  // no error
}

TEST(Model, ABiasThatTheArchitectureLacksIsRefused) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen2", directory);
  std::string config = test::CaseModelFiles().at("tiny_qwen2/config.json");
  const size_t at = config.find("Qwen2ForCausalLM");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 16, "LlamaForCausalLM");
  std::ofstream(path + "/config.json") << config;
  const auto model = Load(path);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("_proj.bias"));
}

TEST(Model, UnusedTensorsAreTold) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("tiny_qwen3", directory);
  std::string config = test::CaseModelFiles().at("tiny_qwen3/config.json");
  const std::string layers = "\"num_hidden_layers\": 2";
  const size_t at = config.find(layers);
  ASSERT_NE(at, std::string::npos);
  config.replace(at, layers.size(), "\"num_hidden_layers\": 1");
  std::ofstream(path + "/config.json") << config;
  const auto model = Load(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT((*model)->warnings, Contains(HasSubstr("model.layers.1.")));
}

TEST(Model, ShardMayNotLeaveTheDirectory) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("shards_odd_names", directory);
  for (const char* shard : {"../tiny.safetensors", "/etc/passwd", "a/b", "..", ""}) {
    std::ofstream(path + "/model.safetensors.index.json")
        << absl::StrCat("{\"weight_map\": {\"model.norm.weight\": \"", shard, "\"}}");
    const auto model = Load(path);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << shard;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr("same directory"));
  }
}

TEST(Model, TensorOfTwoShardsIsRefused) {
  test::TempDir directory;
  const std::string path = test::ExtractCaseModel("shards_odd_names", directory);
  fs::copy_file(path + "/layers-late.safetensors", path + "/again.safetensors");
  std::string index = test::CaseModelFiles().at("shards_odd_names/model.safetensors.index.json");
  index.replace(index.find("\"layers-late.safetensors\""), 26, "\"again.safetensors\",");
  std::ofstream(path + "/model.safetensors.index.json") << index;
  const auto model = Load(path);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << model.status();
}

// SmolLM2: Q4_1 layers, Q8_0 tied embedding, rows of Q and K interleaved.
TEST(Model, SmolLm2Gguf) {
  SKIP_WITHOUT_SMOLLM2(path);
  const auto loaded = Load(*path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Model& model = **loaded;
  const ModelConfig& c = model.config;
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.num_layers, 30);
  EXPECT_EQ(c.hidden, 576);
  EXPECT_EQ(c.inner, 1536);
  EXPECT_EQ(c.num_q_heads, 9);
  EXPECT_EQ(c.num_kv_heads, 3);
  EXPECT_EQ(c.head_size, 64);
  EXPECT_EQ(c.vocab, 49152);
  EXPECT_EQ(c.max_position, 8192);
  EXPECT_EQ(c.rope_theta, 100000);
  EXPECT_FLOAT_EQ(c.rms_eps, 1e-5f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_THAT(c.eos_ids, ElementsAre(2, 0));
  EXPECT_EQ(c.weights_dtype, "q4_1");
  EXPECT_EQ(model.weights, "int4");
  EXPECT_EQ(model.layers[0].qkv.form, WeightForm::kInt4Group32Min);
  EXPECT_EQ(model.head.form, WeightForm::kInt8Group32);
  ASSERT_NE(model.tokenizer, nullptr);
  EXPECT_THAT(model.warnings, ElementsAre());

  // Exact: codes, scales and minima go over as they are.
  const auto file = OpenGguf(*path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto file_row = [&](const std::string& name, int64_t row) {
    const TensorInfo& t = *file->files.Find(name);
    std::vector<float> values(t.shape[1]);
    const int64_t row_bytes = t.shape[1] / t.type.block_elements * t.type.block_bytes;
    DequantizeToF32(t.type.type, file->files.Data(t) + row * row_bytes, t.shape[1], values.data());
    return values;
  };
  const auto packed_row = [](const PackedMatrix& matrix, int64_t row) {
    std::vector<float> values(matrix.k);
    DequantizeRow(matrix, row, values.data());
    return values;
  };
  for (int64_t row : {0, 1, 17, 49151}) {
    EXPECT_EQ(packed_row(model.embedding, row), file_row("token_embd.weight", row));
  }
  const LayerWeights& layer = model.layers[7];
  EXPECT_EQ(packed_row(layer.down, 575), file_row("blk.7.ffn_down.weight", 575));
  EXPECT_EQ(packed_row(layer.gate_up, 1536), file_row("blk.7.ffn_up.weight", 0));
  EXPECT_EQ(packed_row(layer.qkv, 576 + 192 + 100), file_row("blk.7.attn_v.weight", 100));
  // Head 2, element 5 of the first half and of the second: neighbours in the file.
  EXPECT_EQ(packed_row(layer.qkv, 2 * 64 + 5), file_row("blk.7.attn_q.weight", 2 * 64 + 10));
  EXPECT_EQ(packed_row(layer.qkv, 2 * 64 + 37), file_row("blk.7.attn_q.weight", 2 * 64 + 11));
  EXPECT_EQ(packed_row(layer.qkv, 576 + 64 + 37), file_row("blk.7.attn_k.weight", 64 + 11));
}

}  // namespace
}  // namespace quire
