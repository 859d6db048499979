// ModelConfig from the JSON files of a Hugging Face directory.
//
// Older and newer spellings are read alike: rope_theta + rope_scaling or rope_parameters,
// torch_dtype or dtype, ids as a number or a list; null is absent. What would change the results
// and is not built is refused with its name and value.
#ifndef QUIRE_WORKER_MODEL_HF_CONFIG_H_
#define QUIRE_WORKER_MODEL_HF_CONFIG_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/model/model_config.h"

namespace quire {

// `config_json` is the content of config.json, `generation_json` of generation_config.json ("" =
// none); `config_origin` and `generation_origin` name them in messages. weights_dtype is "fp8" if
// the configuration says so, else the dtype named there ("" if none).
absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view config_json,
                                          const std::string& config_origin,
                                          std::string_view generation_json,
                                          const std::string& generation_origin);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_HF_CONFIG_H_
