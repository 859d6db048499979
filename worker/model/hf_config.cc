#include "worker/model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/model/json_file.h"
#include "worker/model/tensor_files.h"

namespace quire {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt = 1 << 30;

// A required integer.
absl::StatusOr<int32_t> Required(const JsonFields& fields, const std::string& key) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, fields.Int(key, 1, kMaxInt));
  if (!value.has_value()) return fields.Missing(key);
  return static_cast<int32_t>(*value);
}

absl::StatusOr<Architecture> ParseArchitecture(const JsonFields& fields) {
  const json* names = fields.Find("architectures");
  if (names == nullptr) return fields.Missing("architectures");
  if (!names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
    return fields.Wrong("architectures", "a list of one name");
  }
  const std::string& name = (*names)[0].get_ref<const std::string&>();
  if (name == "Qwen3ForCausalLM") return Architecture::kQwen3;
  if (name == "Qwen2ForCausalLM") return Architecture::kQwen2;
  if (name == "LlamaForCausalLM") return Architecture::kLlama;
  return absl::UnimplementedError(absl::StrCat(
      fields.origin(), ": architecture ", Quoted(name),
      " is not supported, only Qwen3ForCausalLM, Qwen2ForCausalLM and LlamaForCausalLM are"));
}

// eos_token_id and the like: a number or a list of numbers. Adds what is not there yet.
absl::Status AddIds(const JsonFields& fields, const std::string& key, std::vector<int32_t>* ids) {
  const json* value = fields.Find(key);
  if (value == nullptr) return absl::OkStatus();
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxInt || list.size() > 1024) {
      return fields.Wrong(key, "a token id or a list of at most 1024 token ids");
    }
    const auto number = static_cast<int32_t>(id.get<uint64_t>());
    if (std::find(ids->begin(), ids->end(), number) == ids->end()) ids->push_back(number);
  }
  return absl::OkStatus();
}

absl::Status RefuseIfTrue(const JsonFields& fields, const std::string& key) {
  ASSIGN_OR_RETURN(const auto value, fields.Bool(key));
  return value.value_or(false) ? fields.NotSupported(key) : absl::OkStatus();
}

// Sliding windows count only where a layer uses one.
absl::Status RefuseSlidingWindow(const JsonFields& fields, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto window, fields.Int("sliding_window", 0, kMaxInt));
  ASSIGN_OR_RETURN(const auto use, fields.Bool("use_sliding_window"));
  const bool has_window =
      window.has_value() && use.value_or(config.architecture == Architecture::kLlama);
  if (const json* types = fields.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) return fields.Wrong("layer_types", "a list of names");
    for (const json& type : *types) {
      if (type == "full_attention" || (type == "sliding_attention" && !has_window)) continue;
      return absl::UnimplementedError(absl::StrCat(fields.origin(), ": layer_types holds ",
                                                   Quoted(type.dump()),
                                                   ", only full_attention is supported"));
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const auto first_layer, fields.Int("max_window_layers", 0, kMaxInt));
  if (has_window && first_layer.value_or(0) < config.num_layers) {
    return fields.NotSupported("sliding_window");
  }
  return absl::OkStatus();
}

absl::Status ParseYarn(const JsonFields& rope, RopeScaling* scaling) {
  ASSIGN_OR_RETURN(const auto attention_factor, rope.Double("attention_factor", 1e-3, 1e3));
  ASSIGN_OR_RETURN(const auto mscale, rope.Double("mscale", 0, 1e3));
  ASSIGN_OR_RETURN(const auto mscale_all_dim, rope.Double("mscale_all_dim", 0, 1e3));
  ASSIGN_OR_RETURN(const auto beta_fast, rope.Double("beta_fast", 0, 1e6));
  ASSIGN_OR_RETURN(const auto beta_slow, rope.Double("beta_slow", 0, 1e6));
  ASSIGN_OR_RETURN(const auto truncate, rope.Bool("truncate"));
  scaling->attention_factor = attention_factor.value_or(0);
  scaling->mscale = mscale.value_or(0);
  scaling->mscale_all_dim = mscale_all_dim.value_or(0);
  if (beta_fast.value_or(0) > 0) scaling->beta_fast = *beta_fast;
  if (beta_slow.value_or(0) > 0) scaling->beta_slow = *beta_slow;
  scaling->truncate = truncate.value_or(true);
  return absl::OkStatus();
}

// `rope` is rope_parameters or rope_scaling, `top` the whole configuration.
absl::Status ParseRopeScaling(const JsonFields& rope, const JsonFields& top, ModelConfig* config) {
  RopeScaling& scaling = config->rope_scaling;
  ASSIGN_OR_RETURN(auto type, rope.String("rope_type"));
  if (!type.has_value()) {
    ASSIGN_OR_RETURN(type, rope.String("type"));
  }
  const std::string kind = type.value_or("default");
  ASSIGN_OR_RETURN(const auto theta, rope.Double("rope_theta", 1, 1e12));
  if (theta.has_value()) config->rope_theta = *theta;
  ASSIGN_OR_RETURN(const auto partial, rope.Double("partial_rotary_factor", 0, 1e6));
  if (partial.value_or(1) != 1) return rope.NotSupported("partial_rotary_factor");
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (rope.Find(layer_type) != nullptr) return rope.NotSupported(layer_type);
  }
  if (kind == "default") return absl::OkStatus();
  if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (kind == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
  } else if (kind == "yarn") {
    scaling.kind = RopeScaling::Kind::kYarn;
  } else {
    return absl::UnimplementedError(
        absl::StrCat(rope.origin(), ": RoPE type ", Quoted(kind),
                     " is not supported, only default, linear, llama3 and yarn are"));
  }
  ASSIGN_OR_RETURN(const auto factor, rope.Double("factor", 1, 1e6));
  // As in the reference: a place of its own at the top goes first, the model's length is the last.
  constexpr char kOriginal[] = "original_max_position_embeddings";
  ASSIGN_OR_RETURN(auto original, top.Double(kOriginal, 1, kMaxInt));
  if (!original.has_value()) {
    ASSIGN_OR_RETURN(original, rope.Double(kOriginal, 1, kMaxInt));
  }
  scaling.original_max_position = original.value_or(config->max_position);
  if (factor.has_value()) {
    scaling.factor = *factor;
  } else if (scaling.kind == RopeScaling::Kind::kYarn && original.has_value()) {
    scaling.factor = config->max_position / scaling.original_max_position;
  } else {
    return rope.Missing("factor");
  }
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    ASSIGN_OR_RETURN(const auto low, rope.Double("low_freq_factor", 1e-6, 1e6));
    ASSIGN_OR_RETURN(const auto high, rope.Double("high_freq_factor", 1e-6, 1e6));
    if (!low.has_value()) return rope.Missing("low_freq_factor");
    if (!high.has_value()) return rope.Missing("high_freq_factor");
    scaling.low_freq_factor = *low;
    scaling.high_freq_factor = *high;
  }
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    RETURN_IF_ERROR(ParseYarn(rope, &scaling));
    // Published Qwen3 files keep their old length beside a YaRN entry that stretches it.
    const double stretched = scaling.factor * scaling.original_max_position;
    if (original.has_value() && stretched > config->max_position && stretched < kMaxInt) {
      config->max_position = static_cast<int32_t>(stretched);
    }
  }
  return absl::OkStatus();
}

absl::Status ParseRope(const JsonFields& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(const auto theta, fields.Double("rope_theta", 1, 1e12));
  config->rope_theta = theta.value_or(10000);
  ASSIGN_OR_RETURN(const auto partial, fields.Double("partial_rotary_factor", 0, 1e6));
  if (partial.value_or(1) != 1) return fields.NotSupported("partial_rotary_factor");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* value = fields.Find(key);
    if (value == nullptr || (value->is_object() && value->empty())) continue;
    if (!value->is_object()) return fields.Wrong(key, "an object");
    return ParseRopeScaling(JsonFields(*value, fields.origin(), absl::StrCat(key, ".")), fields,
                            config);
  }
  return absl::OkStatus();
}

// Sets weights_dtype: "fp8" for the one quantisation that is read, else what the file names.
absl::Status ParseWeightsDtype(const JsonFields& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(auto dtype, fields.String("dtype"));
  if (!dtype.has_value()) {
    ASSIGN_OR_RETURN(dtype, fields.String("torch_dtype"));
  }
  const std::string name = dtype.value_or("");
  config->weights_dtype = name == "bfloat16"  ? "bf16"
                          : name == "float16" ? "f16"
                          : name == "float32" ? "f32"
                                              : "";
  const json* quantization = fields.Find("quantization_config");
  if (quantization == nullptr) return absl::OkStatus();
  if (!quantization->is_object()) return fields.Wrong("quantization_config", "an object");
  const JsonFields q(*quantization, fields.origin(), "quantization_config.");
  ASSIGN_OR_RETURN(const auto method, q.String("quant_method"));
  if (method.value_or("") != "fp8") return q.NotSupported("quant_method");
  const json* block = q.Find("weight_block_size");
  if (block == nullptr || *block != json::array({128, 128})) {
    return q.NotSupported("weight_block_size");
  }
  ASSIGN_OR_RETURN(const auto format, q.String("fmt"));
  if (format.value_or("e4m3") != "e4m3") return q.NotSupported("fmt");
  ASSIGN_OR_RETURN(const auto scheme, q.String("activation_scheme"));
  if (scheme.value_or("dynamic") != "dynamic") return q.NotSupported("activation_scheme");
  config->weights_dtype = "fp8";
  return absl::OkStatus();
}

absl::Status ParseGeneration(const JsonFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(AddIds(fields, "eos_token_id", &config->eos_ids));
  ASSIGN_OR_RETURN(config->temperature, fields.Double("temperature", 0, 1e6));
  ASSIGN_OR_RETURN(config->top_p, fields.Double("top_p", 0, 1));
  ASSIGN_OR_RETURN(config->min_p, fields.Double("min_p", 0, 1));
  ASSIGN_OR_RETURN(config->repetition_penalty, fields.Double("repetition_penalty", 0, 1e6));
  ASSIGN_OR_RETURN(config->top_k, fields.Int("top_k", -1, kMaxInt));
  return absl::OkStatus();
}

absl::Status RefuseUnsupported(const JsonFields& fields, const ModelConfig& config) {
  RETURN_IF_ERROR(RefuseSlidingWindow(fields, config));
  // Qwen2 always has its QKV bias, whatever this key says.
  if (config.architecture != Architecture::kQwen2) {
    RETURN_IF_ERROR(RefuseIfTrue(fields, "attention_bias"));
  }
  RETURN_IF_ERROR(RefuseIfTrue(fields, "mlp_bias"));
  ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  if (activation.value_or("silu") != "silu" && *activation != "swish") {
    return fields.NotSupported("hidden_act");
  }
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    ASSIGN_OR_RETURN(const auto experts, fields.Int(key, 0, kMaxInt));
    if (experts.value_or(0) > 0) return fields.NotSupported(key);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view config_json,
                                          const std::string& config_origin,
                                          std::string_view generation_json,
                                          const std::string& generation_origin) {
  ASSIGN_OR_RETURN(const auto object, ParseJsonObject(config_json, config_origin));
  const JsonFields fields(*object, config_origin);
  ModelConfig config;
  ASSIGN_OR_RETURN(config.architecture, ParseArchitecture(fields));
  ASSIGN_OR_RETURN(config.num_layers, Required(fields, "num_hidden_layers"));
  ASSIGN_OR_RETURN(config.hidden, Required(fields, "hidden_size"));
  ASSIGN_OR_RETURN(config.inner, Required(fields, "intermediate_size"));
  ASSIGN_OR_RETURN(config.num_q_heads, Required(fields, "num_attention_heads"));
  ASSIGN_OR_RETURN(config.vocab, Required(fields, "vocab_size"));
  ASSIGN_OR_RETURN(config.max_position, Required(fields, "max_position_embeddings"));
  ASSIGN_OR_RETURN(const auto kv_heads, fields.Int("num_key_value_heads", 1, kMaxInt));
  config.num_kv_heads = static_cast<int32_t>(kv_heads.value_or(config.num_q_heads));
  ASSIGN_OR_RETURN(const auto head_size, fields.Int("head_dim", 1, kMaxInt));
  // 128 is the default of Qwen3's configuration class, the quotient that of the others.
  config.head_size = static_cast<int32_t>(head_size.value_or(
      config.architecture == Architecture::kQwen3 ? 128 : config.hidden / config.num_q_heads));
  ASSIGN_OR_RETURN(const auto eps, fields.Double("rms_norm_eps", 0, 1));
  config.rms_eps = static_cast<float>(eps.value_or(1e-6));
  ASSIGN_OR_RETURN(const auto tied, fields.Bool("tie_word_embeddings"));
  config.tied_embeddings = tied.value_or(false);
  config.qk_norm = config.architecture == Architecture::kQwen3;
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  RETURN_IF_ERROR(RefuseUnsupported(fields, config));
  RETURN_IF_ERROR(ParseRope(fields, &config));
  RETURN_IF_ERROR(ParseWeightsDtype(fields, &config));
  std::vector<int32_t> bos_ids;
  RETURN_IF_ERROR(AddIds(fields, "bos_token_id", &bos_ids));
  if (!bos_ids.empty()) config.bos_id = bos_ids[0];
  RETURN_IF_ERROR(AddIds(fields, "eos_token_id", &config.eos_ids));
  if (!generation_json.empty()) {
    ASSIGN_OR_RETURN(const auto generation, ParseJsonObject(generation_json, generation_origin));
    RETURN_IF_ERROR(ParseGeneration(JsonFields(*generation, generation_origin), &config));
  }
  RETURN_IF_ERROR(ValidateModelConfig(config, config_origin));
  return config;
}

}  // namespace quire
