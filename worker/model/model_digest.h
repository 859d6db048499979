// The model digest: what names a model's weights and configuration in block keys.
//
// SHA-256 over the canonical configuration and the sorted list of (tensor name, dtype, shape,
// XXH3-128 of its bytes). It reads every byte of the model once, so it is kept: in a file beside
// the model (<model.gguf>.digest, or .quire-digest in the directory), or under $QUIRE_HOME/digests
// if that place cannot be written. A kept digest counts only while path, size and modification time
// of every file and the configuration are what they were.
#ifndef QUIRE_WORKER_MODEL_MODEL_DIGEST_H_
#define QUIRE_WORKER_MODEL_MODEL_DIGEST_H_

#include <string>
#include <vector>

#include "worker/model/model_config.h"
#include "worker/model/tensor_files.h"

namespace quire {

// 64 hex characters. Work is spread over `num_threads`, tensor by tensor.
std::string ComputeModelDigest(const TensorFiles& files, const ModelConfig& config,
                               int num_threads);

// Where a digest may be kept, the best place first.
std::vector<std::string> DigestCachePaths(const std::string& model_path);

// The kept digest, or "" if there is none that still holds.
std::string ReadKeptDigest(const std::vector<std::string>& cache_paths, const TensorFiles& files,
                           const ModelConfig& config);

// Keeps `digest` in the first place that can be written; not being able to is no error.
void KeepDigest(const std::vector<std::string>& cache_paths, const TensorFiles& files,
                const ModelConfig& config, const std::string& digest);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_MODEL_DIGEST_H_
