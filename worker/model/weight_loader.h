// From the tensors of a checkpoint to packed weights: which tensors a model needs, the form each
// matrix is held in, and the packing itself, in parallel by ranges of panels.
//
// Every tensor that the architecture needs is read or the load fails; nothing keeps initial memory.
// Files are mapped; what has been packed is given back to the kernel at once, so that memory peaks
// at the packed weights plus a panel of staging a thread.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_
#define QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/model.h"
#include "worker/model/tensor_files.h"

namespace quire {

enum class CheckpointFormat { kHuggingFace, kGguf };

struct WeightLoadOptions {
  CheckpointFormat format = CheckpointFormat::kHuggingFace;
  std::string config_origin;  // names the configuration's file in messages
  std::string weights_dtype = "auto";
  Isa isa = Isa::kPortable;
  int num_threads = 1;
  std::function<void(int64_t, int64_t)> progress;  // packed bytes done and in all; may be null
};

struct WeightLoadStats {
  int64_t staging_bytes = 0;  // peak, all threads together
};

// Decides whether the head is the embedding table, from configuration and file; may change
// config.tied_embeddings and add a warning.
// Errors: INVALID_ARGUMENT if there is neither a head nor a word that it is tied.
absl::Status ResolveTiedEmbeddings(const TensorFiles& files, CheckpointFormat format,
                                   const std::string& config_origin, Model* model);

// Fills layers, embedding, head, final_norm, memory, packed_bytes, weights and
// config.weights_dtype of `model`, whose configuration is set and resolved.
// Errors: as LoadModel.
absl::Status LoadWeights(const TensorFiles& files, const WeightLoadOptions& options, Model* model,
                         WeightLoadStats* stats = nullptr);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_LOADER_H_
