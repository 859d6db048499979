#include "worker/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/model/gguf_quants.h"

namespace quire {
namespace {

constexpr int64_t kMaxInt = 1 << 30;
constexpr int32_t kControlToken = 3;  // of tokenizer.ggml.token_type

absl::StatusOr<int32_t> Required(const GgufFile& file, const std::string& key) {
  ASSIGN_OR_RETURN(const auto value, file.Int(key, 1, kMaxInt));
  if (!value.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": key ", Quoted(key), " is missing"));
  }
  return static_cast<int32_t>(*value);
}

absl::Status NotSupported(const GgufFile& file, const std::string& key, const std::string& value) {
  return absl::UnimplementedError(
      absl::StrCat(file.path, ": ", key, " ", value, " is not supported"));
}

absl::StatusOr<Architecture> ParseArchitecture(const GgufFile& file) {
  ASSIGN_OR_RETURN(const auto name, file.String("general.architecture"));
  if (!name.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": key \"general.architecture\" is missing"));
  }
  if (*name == "qwen3") return Architecture::kQwen3;
  if (*name == "qwen2") return Architecture::kQwen2;
  if (*name == "llama") return Architecture::kLlama;
  return absl::UnimplementedError(
      absl::StrCat(file.path, ": general.architecture ", Quoted(*name),
                   " is not supported, only qwen3, qwen2 and llama are"));
}

absl::Status ParseRope(const GgufFile& file, const std::string& prefix, ModelConfig* config) {
  RopeScaling& scaling = config->rope_scaling;
  const std::string rope = prefix + "rope.";
  ASSIGN_OR_RETURN(const auto theta, file.Double(rope + "freq_base", 1, 1e12));
  config->rope_theta = theta.value_or(10000);
  ASSIGN_OR_RETURN(const auto rotated, file.Int(rope + "dimension_count", 0, kMaxInt));
  if (rotated.has_value() && *rotated != config->head_size) {
    return NotSupported(file, rope + "dimension_count",
                        absl::StrCat(*rotated, " (head size ", config->head_size, ")"));
  }
  if (const TensorInfo* freqs = file.files.Find("rope_freqs.weight"); freqs != nullptr) {
    if (freqs->type.type != TensorType::kF32 || freqs->num_elements() > kMaxInt / 1024) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path, ": tensor \"rope_freqs.weight\" is ", freqs->type.name, " ",
                       ShapeString(freqs->shape), ", must be F32 with half the head size values"));
    }
    std::vector<float> values(freqs->num_elements());
    DequantizeToF32(TensorType::kF32, file.files.Data(*freqs), freqs->num_elements(),
                    values.data());
    scaling.freq_factors.assign(values.begin(), values.end());
  }
  ASSIGN_OR_RETURN(const auto type, file.String(rope + "scaling.type"));
  ASSIGN_OR_RETURN(auto factor, file.Double(rope + "scaling.factor", 0, 1e6));
  if (!factor.has_value()) {  // the older key, for linear scaling
    ASSIGN_OR_RETURN(factor, file.Double(rope + "scale_linear", 0, 1e6));
  }
  const bool scaled = factor.value_or(0) > 0 && *factor != 1;
  const std::string kind = type.value_or(scaled ? "linear" : "none");
  if (kind == "none" || (kind == "linear" && !scaled)) return absl::OkStatus();
  if (kind != "linear" && kind != "yarn") {
    return NotSupported(file, rope + "scaling.type", Quoted(kind));
  }
  scaling.kind = kind == "linear" ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kYarn;
  scaling.factor = factor.value_or(0);
  if (kind == "linear") return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto original,
                   file.Double(rope + "scaling.original_context_length", 1, kMaxInt));
  scaling.original_max_position = original.value_or(config->max_position);
  ASSIGN_OR_RETURN(const auto fast, file.Double(rope + "scaling.yarn_beta_fast", 1e-6, 1e6));
  ASSIGN_OR_RETURN(const auto slow, file.Double(rope + "scaling.yarn_beta_slow", 1e-6, 1e6));
  ASSIGN_OR_RETURN(const auto attention, file.Double(rope + "scaling.attn_factor", 1e-6, 1e6));
  scaling.beta_fast = fast.value_or(32);
  scaling.beta_slow = slow.value_or(1);
  // Here the factor multiplies what YaRN itself asks for; in config.json it replaces it.
  if (attention.has_value() && *attention != 1 && scaling.factor >= 1) {
    scaling.attention_factor = *attention * (0.1 * std::log(scaling.factor) + 1);
  }
  return absl::OkStatus();
}

// Adds the end tokens: see the header.
absl::Status ParseIds(const GgufFile& file, ModelConfig* config) {
  const auto add = [config](int64_t id) {
    auto& ids = config->eos_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(static_cast<int32_t>(id));
    }
  };
  for (const char* key : {"eos", "eot", "eom"}) {
    ASSIGN_OR_RETURN(const auto id,
                     file.Int(absl::StrCat("tokenizer.ggml.", key, "_token_id"), 0, UINT32_MAX));
    if (id.has_value() && *id < config->vocab) add(*id);
  }
  ASSIGN_OR_RETURN(const auto bos, file.Int("tokenizer.ggml.bos_token_id", 0, UINT32_MAX));
  if (bos.has_value() && *bos < config->vocab) config->bos_id = static_cast<int32_t>(*bos);
  ASSIGN_OR_RETURN(const std::vector<std::string> tokens, file.Strings("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(const std::vector<int32_t> types, file.Ints("tokenizer.ggml.token_type"));
  for (size_t i = 0; i < std::min(tokens.size(), types.size()); ++i) {
    if (types[i] != kControlToken || static_cast<int64_t>(i) >= config->vocab) continue;
    for (const char* end :
         {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}) {
      if (tokens[i] == end) add(static_cast<int64_t>(i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufFile& file) {
  ModelConfig config;
  ASSIGN_OR_RETURN(config.architecture, ParseArchitecture(file));
  const std::string prefix = absl::StrCat(ArchitectureName(config.architecture), ".");
  ASSIGN_OR_RETURN(config.num_layers, Required(file, prefix + "block_count"));
  ASSIGN_OR_RETURN(config.hidden, Required(file, prefix + "embedding_length"));
  ASSIGN_OR_RETURN(config.inner, Required(file, prefix + "feed_forward_length"));
  ASSIGN_OR_RETURN(config.num_q_heads, Required(file, prefix + "attention.head_count"));
  ASSIGN_OR_RETURN(config.max_position, Required(file, prefix + "context_length"));
  ASSIGN_OR_RETURN(const auto kv_heads, file.Int(prefix + "attention.head_count_kv", 1, kMaxInt));
  config.num_kv_heads = static_cast<int32_t>(kv_heads.value_or(config.num_q_heads));
  ASSIGN_OR_RETURN(const auto key_size, file.Int(prefix + "attention.key_length", 1, kMaxInt));
  config.head_size = static_cast<int32_t>(key_size.value_or(config.hidden / config.num_q_heads));
  ASSIGN_OR_RETURN(const auto value_size, file.Int(prefix + "attention.value_length", 1, kMaxInt));
  if (value_size.value_or(config.head_size) != config.head_size) {
    return NotSupported(file, prefix + "attention.value_length",
                        absl::StrCat(*value_size, " (key length ", config.head_size, ")"));
  }
  ASSIGN_OR_RETURN(const auto eps, file.Double(prefix + "attention.layer_norm_rms_epsilon", 0, 1));
  config.rms_eps = static_cast<float>(eps.value_or(1e-6));
  for (const char* key : {"attention.sliding_window", "expert_count"}) {
    ASSIGN_OR_RETURN(const auto value, file.Int(prefix + key, 0, INT64_MAX));
    if (value.value_or(0) > 0) return NotSupported(file, prefix + key, absl::StrCat(*value));
  }
  const TensorInfo* embedding = file.files.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > kMaxInt) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": tensor \"token_embd.weight\" is missing or no matrix"));
  }
  config.vocab = static_cast<int32_t>(embedding->shape[0]);
  config.tied_embeddings = file.files.Find("output.weight") == nullptr;
  config.qk_norm = config.architecture == Architecture::kQwen3;
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  RETURN_IF_ERROR(ParseRope(file, prefix, &config));
  RETURN_IF_ERROR(ParseIds(file, &config));
  RETURN_IF_ERROR(ValidateModelConfig(config, file.path));
  return config;
}

}  // namespace quire
