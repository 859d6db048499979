#include "worker/model/hf_config.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace quire {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A Llama configuration as older files spell it.
json Base() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "rope_scaling": null, "hidden_act": "silu",
    "tie_word_embeddings": false, "attention_bias": false, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2})");
}

absl::StatusOr<ModelConfig> Parse(const json& config, const std::string& generation = "") {
  return ParseHfConfig(config.dump(), "dir/config.json", generation, "dir/generation_config.json");
}

// The base with the keys of `edit` put in; null removes nothing, it stays null.
absl::StatusOr<ModelConfig> ParseWith(const char* edit) {
  json config = Base();
  config.update(json::parse(edit));
  return Parse(config);
}

TEST(HfConfig, OlderSpelling) {
  const auto config = Parse(Base());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kLlama);
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->inner, 96);
  EXPECT_EQ(config->num_q_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_size, 16);
  EXPECT_EQ(config->vocab, 320);
  EXPECT_EQ(config->max_position, 2048);
  EXPECT_EQ(config->rms_eps, 1e-5f);
  EXPECT_EQ(config->rope_theta, 50000);
  EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_EQ(config->weights_dtype, "bf16");
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
  EXPECT_FALSE(config->tied_embeddings || config->qk_norm || config->qkv_bias);
}

TEST(HfConfig, NewerSpellingIsTheSame) {
  json config = Base();
  for (const char* key : {"rope_theta", "rope_scaling", "torch_dtype"}) config.erase(key);
  config["dtype"] = "bfloat16";
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 50000.0}};
  const auto newer = Parse(config), older = Parse(Base());
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ(CanonicalConfig(*newer), CanonicalConfig(*older));
  EXPECT_EQ(newer->weights_dtype, "bf16");
}

TEST(HfConfig, ScalingInBothSpellings) {
  const char kScaling[] = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192)";
  for (const char* spelling : {R"({"rope_scaling": {"rope_type": "llama3", %}})",
                               R"({"rope_scaling": {"type": "llama3", %}})",
                               R"({"rope_parameters": {"rope_type": "llama3", %}})"}) {
    std::string edit = spelling;
    edit.replace(edit.find('%'), 1, kScaling);
    const auto config = ParseWith(edit.c_str());
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope_scaling.kind, RopeScaling::Kind::kLlama3);
    EXPECT_EQ(config->rope_scaling.factor, 8);
    EXPECT_EQ(config->rope_scaling.original_max_position, 8192);
    EXPECT_EQ(config->rope_theta, 50000);
  }
  const auto yarn = ParseWith(
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 2048}})");
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_EQ(yarn->rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(yarn->max_position, 8192);  // stretched
}

TEST(HfConfig, DefaultsOfAbsentKeys) {
  json config = Base();
  for (const char* key : {"tie_word_embeddings", "num_key_value_heads", "rope_theta", "hidden_act",
                          "bos_token_id", "eos_token_id", "rms_norm_eps", "torch_dtype"}) {
    config.erase(key);
  }
  const auto parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->num_kv_heads, 4);
  EXPECT_EQ(parsed->rope_theta, 10000);
  EXPECT_FALSE(parsed->tied_embeddings);
  EXPECT_FALSE(parsed->bos_id.has_value());
  EXPECT_THAT(parsed->eos_ids, ElementsAre());
  EXPECT_EQ(parsed->weights_dtype, "");
  for (const char* key : {"head_dim", "num_key_value_heads", "sliding_window", "rope_parameters",
                          "quantization_config", "layer_types", "eos_token_id"}) {
    config[key] = nullptr;
  }
  EXPECT_EQ(CanonicalConfig(*Parse(config)), CanonicalConfig(*parsed));
  const auto qwen3 = ParseWith(R"({"architectures": ["Qwen3ForCausalLM"]})");
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_EQ(qwen3->head_size, 128);
  EXPECT_TRUE(qwen3->qk_norm);
  const auto qwen2 = ParseWith(R"({"architectures": ["Qwen2ForCausalLM"]})");
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_EQ(qwen2->head_size, 16);
  EXPECT_TRUE(qwen2->qkv_bias);
}

TEST(HfConfig, EndTokensAreJoined) {
  json config = Base();
  config["eos_token_id"] = {5, 2};
  const auto parsed = Parse(config, R"({"eos_token_id": [2, 7], "temperature": 0.6, "top_p": 0.95,
      "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.05, "do_sample": true})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->eos_ids, ElementsAre(5, 2, 7));
  EXPECT_EQ(parsed->temperature, 0.6);
  EXPECT_EQ(parsed->top_p, 0.95);
  EXPECT_EQ(parsed->top_k, 20);
  EXPECT_EQ(parsed->min_p, 0);
  EXPECT_EQ(parsed->repetition_penalty, 1.05);
}

TEST(HfConfig, SlidingWindowsThatNoLayerUsesAreFine) {
  for (const char* edit : {R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096,
            "use_sliding_window": false, "max_window_layers": 1})",
                           R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096})",
                           R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096,
            "use_sliding_window": true, "max_window_layers": 2})",
                           R"({"architectures": ["Qwen3ForCausalLM"],
            "layer_types": ["full_attention", "full_attention"]})"}) {
    const auto config = ParseWith(edit);
    EXPECT_TRUE(config.ok()) << edit << config.status();
  }
}

TEST(HfConfig, Fp8) {
  const auto config = ParseWith(R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
      "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->weights_dtype, "fp8");
}

// What is refused, its code and what the message names.
struct Refusal {
  const char* edit;
  absl::StatusCode code;
  const char* named;
};
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kMissing = absl::StatusCode::kUnimplemented;
constexpr Refusal kRefusals[] = {
    {R"({"architectures": ["GPT2LMHeadModel"]})", kMissing, "GPT2LMHeadModel"},
    {R"({"architectures": ["Qwen3MoeForCausalLM"]})", kMissing, "Qwen3MoeForCausalLM"},
    {R"({"architectures": []})", kInvalid, "architectures"},
    {R"({"architectures": null})", kInvalid, "architectures is missing"},
    {R"({"hidden_act": "gelu"})", kMissing, "hidden_act \"gelu\""},
    {R"({"attention_bias": true})", kMissing, "attention_bias"},
    {R"({"mlp_bias": true})", kMissing, "mlp_bias"},
    {R"({"sliding_window": 4096})", kMissing, "sliding_window 4096"},
    {R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": true,
         "max_window_layers": 1})",
     kMissing, "sliding_window 64"},
    {R"({"layer_types": ["full_attention", "linear_attention"]})", kMissing, "linear_attention"},
    {R"({"num_experts": 8})", kMissing, "num_experts 8"},
    {R"({"partial_rotary_factor": 0.5})", kMissing, "partial_rotary_factor 0.5"},
    {R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}})", kMissing,
     "rope_parameters.partial_rotary_factor"},
    {R"({"rope_scaling": {"type": "dynamic", "factor": 2}})", kMissing, "dynamic"},
    {R"({"rope_scaling": {"type": "mrope", "mrope_section": [1]}})", kMissing, "mrope"},
    {R"({"rope_scaling": {"type": "linear"}})", kInvalid, "rope_scaling.factor is missing"},
    {R"({"rope_scaling": {"type": "linear", "factor": 0.5}})", kInvalid, "factor is 0.5"},
    {R"({"rope_scaling": "linear"})", kInvalid, "rope_scaling is \"linear\""},
    {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
         "high_freq_factor": 4}})",
     kInvalid, "high_freq_factor"},
    {R"({"quantization_config": {"quant_method": "gptq"}})", kMissing, "gptq"},
    {R"({"quantization_config": {"quant_method": "fp8"}})", kMissing, "weight_block_size"},
    {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}})", kMissing,
     "[64,64]"},
    {R"({"hidden_size": -5})", kInvalid, "hidden_size is -5"},
    {R"({"hidden_size": 1e300})", kInvalid, "hidden_size"},
    {R"({"hidden_size": 64.5})", kInvalid, "hidden_size is 64.5"},
    {R"({"hidden_size": "64"})", kInvalid, "hidden_size is \"64\""},
    {R"({"hidden_size": 1000000})", kInvalid, "hidden size is 1000000"},
    {R"({"num_hidden_layers": 100000})", kInvalid, "number of layers is 100000"},
    {R"({"num_hidden_layers": null})", kInvalid, "num_hidden_layers is missing"},
    {R"({"vocab_size": 18446744073709551615})", kInvalid, "vocab_size"},
    {R"({"num_attention_heads": 0})", kInvalid, "num_attention_heads is 0"},
    {R"({"num_key_value_heads": 3})", kInvalid, "no multiple of the 3 KV heads"},
    {R"({"head_dim": 24})", kMissing, "head size 24"},
    {R"({"head_dim": 1024})", kInvalid, "head size is 1024"},
    {R"({"num_attention_heads": 64, "num_key_value_heads": 64})", kMissing, "head size 1"},
    {R"({"rms_norm_eps": 0})", kInvalid, "epsilon is 0"},
    {R"({"rope_theta": -1})", kInvalid, "rope_theta is -1"},
    {R"({"eos_token_id": -1})", kInvalid, "eos_token_id is -1"},
    {R"({"eos_token_id": {"a": 1}})", kInvalid, "eos_token_id"},
    {R"({"tie_word_embeddings": 1})", kInvalid, "tie_word_embeddings is 1"},
    {R"({"torch_dtype": 16})", kInvalid, "torch_dtype is 16"},
};

TEST(HfConfig, RefusalsNameWhatIsWrong) {
  for (const Refusal& c : kRefusals) {
    SCOPED_TRACE(c.edit);
    const auto config = ParseWith(c.edit);
    EXPECT_EQ(config.status().code(), c.code) << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("dir/config.json"));
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(c.named));
  }
}

TEST(HfConfig, TextThatIsNoConfiguration) {
  for (const std::string& text :
       {std::string(""), std::string("[]"), std::string("{"), std::string("{\"a\": 1, \"a\": 2}"),
        std::string("{\"a\": 1e999}"), std::string("{\"a\": \"\xff\"}"), std::string("nul"),
        std::string(500'000, '['), "{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}"}) {
    const auto config = ParseHfConfig(text, "dir/config.json", "", "");
    EXPECT_EQ(config.status().code(), kInvalid) << text.substr(0, 40);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("dir/config.json"));
  }
  const auto generation = Parse(Base(), R"({"temperature": "warm"})");
  EXPECT_THAT(std::string(generation.status().message()),
              HasSubstr("dir/generation_config.json: temperature is \"warm\""));
}

}  // namespace
}  // namespace quire
