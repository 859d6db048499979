// Model: configuration, packed weights and tokenizer of one model, loaded from a Hugging Face
// directory or a .gguf file. Immutable after loading; shared by the backend and the services.
#ifndef QUIRE_WORKER_MODEL_MODEL_H_
#define QUIRE_WORKER_MODEL_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/memory.h"
#include "common/text/tokenizer.h"
#include "kernels/common/isa.h"
#include "kernels/gemm/gemm.h"
#include "worker/model/model_config.h"

namespace quire {

struct LayerWeights {
  std::vector<float> input_norm;           // [hidden]
  std::vector<float> post_attention_norm;  // [hidden]
  std::vector<float> q_norm, k_norm;       // [head_size] each, Qwen3 only, else empty
  std::vector<float> qkv_bias;             // [q_width + 2 * kv_width], Qwen2 only, else empty
  PackedMatrix qkv;                        // rows: q, then k, then v
  PackedMatrix o;                          // [hidden, q_width]
  PackedMatrix gate_up;                    // rows: gate, then up
  PackedMatrix down;                       // [hidden, inner]
};

struct Model {
  ModelConfig config;
  std::vector<LayerWeights> layers;
  PackedMatrix embedding;                // [vocab, hidden]; the head too if config.tied_embeddings
  PackedMatrix head;                     // [vocab, hidden]; equal to `embedding` if tied
  std::vector<float> final_norm;         // [hidden]
  std::unique_ptr<Tokenizer> tokenizer;  // null if the model brings none (then prompt_ids only)
  std::string tokenizer_error;           // why it is null
  std::vector<std::string> warnings;     // what a person should know about the files; for the log
  std::string digest;                    // hex SHA-256, architecture section 4
  // Of the layers: most of their bytes.
  std::string weights;  // "bf16", "int8", "int4", "f32", "fp8": for ListModels and bench settings
  int64_t packed_bytes = 0;
  HugeBuffer memory;  // owns all packed matrices
  // tokenizer.json, tokenizer_config.json (Hugging Face) or "" each: what GetTokenizer hands out.
  std::string tokenizer_json, tokenizer_config_json;
  // What the tokenizer was made of if it came from GGUF metadata, else null; GetTokenizer hands it out.
  std::shared_ptr<const TokenizerSpec> tokenizer_spec;
};

struct LoadOptions {
  std::string path;                    // directory or .gguf
  std::string weights_dtype = "auto";  // auto, f32, bf16, int8, int4
  Isa isa = Isa::kPortable;            // pack for this family
  int num_threads = 1;
  // Called now and then with bytes done and total; may be null.
  std::function<void(int64_t, int64_t)> progress;
};

// Errors: NOT_FOUND (no such path), INVALID_ARGUMENT (a file is broken: names file, field, value
// and limit), UNIMPLEMENTED (not supported: names what is missing), RESOURCE_EXHAUSTED (memory).
// Peak memory is at most 1.15 times the packed weights.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const LoadOptions& options);

// Only configuration and tokenizer, no weights; for `quire inspect` and checks.
absl::StatusOr<std::unique_ptr<Model>> LoadModelHeader(const std::string& path);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_MODEL_H_
