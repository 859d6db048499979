// Reader of safetensors files: an 8-byte length, a JSON header, and the bytes of the tensors.
//
// The file is untrusted. Before any tensor is looked at: the header lies inside the file, is one
// flat object without repeated names, and the byte ranges of all tensors cover the data without
// overlap and without holes, each as long as dtype and shape say. The header is parsed as a stream,
// so its size bounds the memory taken. Source: https://github.com/huggingface/safetensors, section
// "Format".
#ifndef QUIRE_WORKER_MODEL_SAFETENSORS_H_
#define QUIRE_WORKER_MODEL_SAFETENSORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/tensor_files.h"

namespace quire {

// Opens `path` and adds its tensors to `files`.
// Errors: INVALID_ARGUMENT naming file, tensor, field, value and limit; NOT_FOUND.
absl::Status AddSafetensors(const std::string& path, TensorFiles* files);

// Opens the safetensors files of a directory: model.safetensors.index.json and the shards that it
// names (a shard's name may not leave the directory, all missing ones are named in one message), or
// else model.safetensors.
absl::StatusOr<TensorFiles> OpenSafetensorsDirectory(const std::string& directory);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_SAFETENSORS_H_
