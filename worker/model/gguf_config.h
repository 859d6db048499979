// ModelConfig and tokenizer fields from the metadata of a GGUF file.
#ifndef QUIRE_WORKER_MODEL_GGUF_CONFIG_H_
#define QUIRE_WORKER_MODEL_GGUF_CONFIG_H_

#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/model/model_config.h"

namespace quire {

// End ids are those that the metadata names and the control tokens whose text is known to end a
// turn, since the metadata has room for one only.
// Errors: INVALID_ARGUMENT or UNIMPLEMENTED naming file, key, value and limit.
absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufFile& file);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_GGUF_CONFIG_H_
