// RopeTable: cosines and sines of rotary position embeddings for all positions of a model, with the
// scaling of its configuration (linear, Llama 3, YaRN, or the factors of a GGUF file).
//
// angle(p, i) = p * inv_freq(i), i in [0, head_size / 2). Computed in double and rounded once;
// YaRN's attention factor is multiplied into both tables. Source: YaRN, Peng et al., ICLR 2024;
// `transformers` modeling_rope_utils.py for the details.
#ifndef QUIRE_WORKER_MODEL_ROPE_TABLE_H_
#define QUIRE_WORKER_MODEL_ROPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/model_config.h"

namespace quire {

class RopeTable {
 public:
  // Errors: INVALID_ARGUMENT naming max_positions if it is not in [1, 2^28].
  static absl::StatusOr<RopeTable> Create(const ModelConfig& config, int64_t max_positions);

  int64_t max_positions() const { return max_positions_; }
  const float* cos() const { return cos_.data(); }  // [max_positions][head_size / 2]
  const float* sin() const { return sin_.data(); }  // [max_positions][head_size / 2]

 private:
  int64_t max_positions_ = 0;
  std::vector<float> cos_, sin_;
};

// The two parts of the definition, for tests. `config` must be valid.
std::vector<double> RopeInverseFrequencies(const ModelConfig& config);  // [head_size / 2]
double RopeAttentionFactor(const ModelConfig& config);                  // 1 but for YaRN

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_ROPE_TABLE_H_
