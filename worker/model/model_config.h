// ModelConfig: what the decoder needs to know of a model, whatever file it came from.
#ifndef QUIRE_WORKER_MODEL_MODEL_CONFIG_H_
#define QUIRE_WORKER_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

enum class Architecture { kQwen3, kQwen2, kLlama };

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1;
  double original_max_position = 0;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;                       // yarn; 0 = 0.1 ln(factor) + 1
  double mscale = 0, mscale_all_dim = 0;             // yarn
  bool truncate = true;                              // yarn: whole dimensions bound the ramp
  std::vector<double> freq_factors;                  // GGUF rope_freqs tensor: inv_freq / these
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;  // served name by default: directory or file stem, or general.name
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t inner = 0;  // MLP width
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;
  int32_t vocab = 0;         // rows of the embedding
  int32_t max_position = 0;  // the model's own length limit
  float rms_eps = 1e-6f;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tied_embeddings = false;  // the head is the embedding table
  bool qk_norm = false;          // Qwen3
  bool qkv_bias = false;         // Qwen2
  std::string weights_dtype;     // of the file: "bf16", "f32", "fp8", "q8_0", ... most common one
  std::vector<int32_t> eos_ids;  // config and generation_config joined
  std::optional<int32_t> bos_id;

  // generation_config.json defaults; absent = not given.
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;

  int32_t q_width() const { return num_q_heads * head_size; }
  int32_t kv_width() const { return num_kv_heads * head_size; }
};

const char* ArchitectureName(Architecture architecture);  // "qwen3", "qwen2", "llama"

// What decides the results of the model and is not in its tensors, as one line of text with fixed
// order and spelling: part of the model digest. Names and generation defaults are left out.
std::string CanonicalConfig(const ModelConfig& config);

// Numbers that fit one another and the limits of this program, whatever file they came from.
// Errors: INVALID_ARGUMENT or UNIMPLEMENTED naming `origin`, field, value and limit.
absl::Status ValidateModelConfig(const ModelConfig& config, const std::string& origin);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_MODEL_CONFIG_H_
