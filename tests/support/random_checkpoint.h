// Random checkpoints whose weights follow from a counter, so that a script and a test make the same
// bytes and no weight file is kept. The definition is tests/golden/parity/make_goldens.py.
#ifndef QUIRE_TESTS_SUPPORT_RANDOM_CHECKPOINT_H_
#define QUIRE_TESTS_SUPPORT_RANDOM_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace quire::test {

struct RandomCheckpoint {
  // The whole config.json, in either spelling. Read from it: model_type, hidden_size,
  // intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
  // vocab_size, tie_word_embeddings.
  std::string config_json;
  uint64_t seed = 1;
  double gain = 2;             // of matrices: uniform in +-gain / sqrt(columns)
  double embed = 1;            // of the embedding: uniform in +-embed
  std::string dtype = "BF16";  // of the file: BF16, F16, F32
  bool fp8 = false;            // layer matrices as e4m3 codes with 128 x 128 block scales
  int num_files = 1;           // > 1: shards with an index
};

// A small config.json with a vocabulary of `vocab` and `num_layers` layers, for tests that need
// some model and no golden. `model_type`: "qwen3", "qwen2", "llama".
std::string TinyConfigJson(const std::string& model_type, int head_size, int num_q_heads = 4,
                           int num_kv_heads = 2, int num_layers = 2, int hidden = 64,
                           int inner = 96, int vocab = 320);

// Writes config.json and the safetensors files into `directory` (made if missing). `sha256`, if not
// null, gets the hex digest of all tensors' bytes in order. Nothing is kept in memory: tensors are
// streamed.
absl::Status WriteRandomCheckpoint(const std::string& directory, const RandomCheckpoint& spec,
                                   std::string* sha256 = nullptr);

}  // namespace quire::test

#endif  // QUIRE_TESTS_SUPPORT_RANDOM_CHECKPOINT_H_
