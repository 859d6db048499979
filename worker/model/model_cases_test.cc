// The public cases of area f, model files, as far as they are about loading and refusing; what the
// loaded models generate is tested with the engine (tests/integration).
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_archive.h"
#include "worker/model/model.h"

namespace quire {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class ModelCases : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& name,
                                              const std::string& weights_dtype = "auto") {
    LoadOptions options;
    options.path = test::ExtractCaseModel(name, directory_);
    options.weights_dtype = weights_dtype;
    options.num_threads = 2;
    return LoadModel(options);
  }

  // Loads both and compares every packed byte and vector.
  void ExpectEqualModels(const std::string& name, const std::string& other,
                         const std::string& weights_dtype = "auto") {
    SCOPED_TRACE(name);
    auto a = Load(name, weights_dtype), b = Load(other, weights_dtype);
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(b.ok()) << b.status();
    const Model &x = **a, &y = **b;
    ASSERT_EQ(x.packed_bytes, y.packed_bytes);
    EXPECT_EQ(std::memcmp(x.memory.data(), y.memory.data(), x.packed_bytes), 0);
    EXPECT_EQ(x.final_norm, y.final_norm);
    ASSERT_EQ(x.layers.size(), y.layers.size());
    for (size_t i = 0; i < x.layers.size(); ++i) {
      EXPECT_EQ(x.layers[i].input_norm, y.layers[i].input_norm);
      EXPECT_EQ(x.layers[i].post_attention_norm, y.layers[i].post_attention_norm);
      EXPECT_EQ(x.layers[i].q_norm, y.layers[i].q_norm);
      EXPECT_EQ(x.layers[i].k_norm, y.layers[i].k_norm);
      EXPECT_EQ(x.layers[i].qkv_bias, y.layers[i].qkv_bias);
    }
    EXPECT_EQ(x.config.head_size, y.config.head_size);
    EXPECT_EQ(x.config.rope_theta, y.config.rope_theta);
    EXPECT_EQ(x.config.rms_eps, y.config.rms_eps);
  }

  void ExpectRefused(const std::string& name, const std::vector<std::string>& names) {
    SCOPED_TRACE(name);
    (void)test::CaseModelFiles();  // unpacking is not what is timed
    const auto start = std::chrono::steady_clock::now();
    const auto model = Load(name);
    const auto took = std::chrono::steady_clock::now() - start;
    ASSERT_FALSE(model.ok());
    EXPECT_THAT(model.status().code(),
                AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnimplemented));
    for (const std::string& part : names) {
      EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
    }
    EXPECT_LT(took, std::chrono::seconds(2));
  }

  test::TempDir directory_;
};

// pub-f-st_header_and_offsets
TEST_F(ModelCases, PaddedHeaderOddOffsetAndEmptyTensorLoad) {
  for (const char* name : {"st_header_padded", "st_odd_offset", "st_zero_length"}) {
    ExpectEqualModels(name, "tiny_qwen3");
  }
}

// pub-f-st_bad_offsets
TEST_F(ModelCases, BadOffsetsAreRefused) {
  const char kTensor[] = "model.layers.1.mlp";
  ExpectRefused("st_overlap", {kTensor, "data_offsets", "overlap", "model.safetensors"});
  ExpectRefused("st_past_end", {kTensor, "data_offsets", "1099511627776"});
  ExpectRefused("st_shape", {kTensor, "shape [1000, 1000]", "2000000"});
  ExpectRefused("st_reversed", {kTensor, "data_offsets"});
}

// pub-f-cfg_rope_null
TEST_F(ModelCases, NullIsAbsent) { ExpectEqualModels("cfg_rope_null", "tiny_llama"); }

// pub-f-head_dim_absent
TEST_F(ModelCases, HeadSizeFromTheArchitecturesDefault) {
  ExpectEqualModels("cfg_llama_no_head_dim", "tiny_llama");
  ExpectEqualModels("cfg_llama_null_head_dim", "tiny_llama");
  ExpectEqualModels("cfg_qwen3_no_head_dim", "tiny_qwen3");
}

// pub-f-tied_but_head_present
TEST_F(ModelCases, HeadThatDiffersFromTiedEmbeddingIsUsed) {
  ExpectEqualModels("tie_true_with_head", "tiny_qwen3");
  const auto model = Load("tie_true_with_head");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT((*model)->warnings, ElementsAre(HasSubstr("tie_word_embeddings")));
  EXPECT_FALSE((*model)->config.tied_embeddings);
}

// pub-f-head_missing_tie_absent
TEST_F(ModelCases, MissingHeadIsRefused) {
  ExpectRefused("tie_absent_no_head", {"lm_head.weight", "tie_word_embeddings"});
}

// pub-f-eos_sources
TEST_F(ModelCases, EndTokensFromEitherFile) {
  for (const char* name : {"eos_in_config_only", "table"}) {
    const auto model = Load(name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_THAT((*model)->config.eos_ids, UnorderedElementsAre(264, 266)) << name;
    EXPECT_EQ((*model)->weights, "f32");
  }
}

// pub-f-shards
TEST_F(ModelCases, TheIndexNamesTheShards) {
  ExpectRefused("shards_missing", {"model-00002-of-00002.safetensors"});
  ExpectEqualModels("shards_odd_names", "tiny_qwen3");
}

// pub-f-merges_spelling: as a whole model; the ids are tested with the tokenizer.
TEST_F(ModelCases, MergesAsStringsLoad) { ExpectEqualModels("merges_as_strings", "tiny_qwen3"); }

// pub-f-gguf_bombs
TEST_F(ModelCases, GgufBombsAreRefused) {
  ExpectRefused("gguf_evil_array_count", {"tokenizer.ggml.tokens", "4611686018427387904", "limit"});
  ExpectRefused("gguf_evil_string_length", {"general.author", "9223372036854775813", "limit"});
  ExpectRefused("gguf_evil_n_dims", {"token_embd.weight", "4294967295", "limit is 4"});
  ExpectRefused("gguf_evil_kv_count", {"metadata count", "2305843009213693952", "limit"});
  ExpectRefused("gguf_evil_nested_arrays", {"\"x\"", "nested deeper than 4"});
  ExpectRefused("gguf_evil_alignment_0", {"general.alignment", "is 0", "[1, 65536]"});
  ExpectRefused("gguf_evil_alignment_24", {"general.alignment", "is 24", "power of two"});
  ExpectRefused("gguf_evil_offset_past_end", {"tensor", "offset 1099", "past the file's"});
}

// pub-f-gguf_duplicate
TEST_F(ModelCases, GgufTensorTwiceIsRefused) {
  ExpectRefused("gguf_duplicate", {"blk.1.ffn_up.weight", "twice"});
}

// pub-f-gguf_pre
TEST_F(ModelCases, GgufPreTokenizerMustBeKnown) {
  ExpectRefused("gguf_pre_unknown", {"tokenizer.ggml.pre", "qwen9-imaginary", "qwen2"});
  ExpectRefused("gguf_pre_missing", {"tokenizer.ggml.pre"});
  ExpectEqualModels("gguf_good", "tiny_qwen3", "f32");
}

// pub-f-gguf_bos_once: the tokenizer's part.
TEST_F(ModelCases, GgufBosIsAddedToPlainPromptsOnly) {
  const auto model = Load("gguf_bos");
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_NE((*model)->tokenizer, nullptr);
  EXPECT_EQ((*model)->tokenizer->Encode("hi", {.add_special_tokens = true}).front(), 264);
  EXPECT_NE((*model)->tokenizer->Encode("hi", {.add_special_tokens = false}).front(), 264);
}

TEST_F(ModelCases, RowOfNanLoadsAsFloatsAndIsNotQuantised) {
  EXPECT_TRUE(Load("nan_row").ok());
  const auto model = Load("nan_row", "int8");
  // The table is looked up only and stays BF16; tied models quantise it (weight_loader_test).
  EXPECT_TRUE(model.ok()) << model.status();
}

}  // namespace
}  // namespace quire
