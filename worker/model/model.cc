#include "worker/model/model.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/gguf_tokenizer.h"
#include "worker/model/gguf.h"
#include "worker/model/gguf_config.h"
#include "worker/model/hf_config.h"
#include "worker/model/json_file.h"
#include "worker/model/model_digest.h"
#include "worker/model/safetensors.h"
#include "worker/model/tensor_files.h"
#include "worker/model/weight_forms.h"
#include "worker/model/weight_loader.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// A model whose configuration and tokenizer are read, with the mapped tensors.
struct OpenedModel {
  std::unique_ptr<Model> model;
  TensorFiles files;
  CheckpointFormat format = CheckpointFormat::kHuggingFace;
  std::string config_origin;
};

// The content of an optional file, "" if it is not there.
absl::StatusOr<std::string> ReadOptionalFile(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::string();
  return ReadTextFile(path, max_bytes);
}

void WarnOfTokenizer(Model* model) {
  if (model->tokenizer != nullptr && model->tokenizer->vocab_size() > model->config.vocab) {
    model->warnings.push_back(absl::StrCat("the tokenizer has ids up to ",
                                           model->tokenizer->vocab_size() - 1,
                                           ", the embedding only ", model->config.vocab, " rows"));
  }
}

// Newer directories keep the chat template in a file of its own, which goes before the one in
// tokenizer_config.json: it is put there.
absl::Status AddChatTemplateFile(const std::string& directory, std::string* config_json) {
  ASSIGN_OR_RETURN(
      const std::string source,
      ReadOptionalFile(absl::StrCat(directory, "/chat_template.jinja"), kMaxConfigBytes));
  if (source.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(*config_json,
                   WithStringField(*config_json, absl::StrCat(directory, "/tokenizer_config.json"),
                                   "chat_template", source));
  return absl::OkStatus();
}

absl::StatusOr<OpenedModel> OpenHuggingFace(const std::string& directory) {
  OpenedModel opened;
  opened.model = std::make_unique<Model>();
  Model& model = *opened.model;
  opened.config_origin = absl::StrCat(directory, "/config.json");
  ASSIGN_OR_RETURN(const std::string config, ReadTextFile(opened.config_origin, kMaxConfigBytes));
  const std::string generation_path = absl::StrCat(directory, "/generation_config.json");
  ASSIGN_OR_RETURN(const std::string generation,
                   ReadOptionalFile(generation_path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(model.config,
                   ParseHfConfig(config, opened.config_origin, generation, generation_path));
  std::error_code error;
  fs::path absolute = fs::absolute(directory, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  model.config.name = absolute.filename().string();

  // Cheap checks first: all shards are looked at before the tokenizer takes its time.
  ASSIGN_OR_RETURN(opened.files, OpenSafetensorsDirectory(directory));
  RETURN_IF_ERROR(ResolveTiedEmbeddings(opened.files, opened.format, opened.config_origin, &model));
  model.config.weights_dtype = MostCommonType(opened.files);
  const std::string tokenizer_path = absl::StrCat(directory, "/tokenizer.json");
  ASSIGN_OR_RETURN(model.tokenizer_json, ReadOptionalFile(tokenizer_path, kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(
      model.tokenizer_config_json,
      ReadOptionalFile(absl::StrCat(directory, "/tokenizer_config.json"), kMaxTokenizerBytes));
  RETURN_IF_ERROR(AddChatTemplateFile(directory, &model.tokenizer_config_json));
  if (fs::exists(tokenizer_path, error)) {
    ASSIGN_OR_RETURN(model.tokenizer,
                     Tokenizer::FromHuggingFace(model.tokenizer_json, model.tokenizer_config_json,
                                                tokenizer_path));
  } else {
    model.tokenizer_error = absl::StrCat(directory, ": no tokenizer.json");
  }
  WarnOfTokenizer(&model);
  return opened;
}

absl::StatusOr<TokenizerSpec> GgufTokenizerSpec(const GgufFile& file) {
  GgufTokenizerFields fields;
  fields.origin = file.path;
  ASSIGN_OR_RETURN(const auto model, file.String("tokenizer.ggml.model"));
  fields.model = model.value_or("");
  ASSIGN_OR_RETURN(fields.pre, file.String("tokenizer.ggml.pre"));
  ASSIGN_OR_RETURN(fields.tokens, file.Strings("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(fields.token_types, file.Ints("tokenizer.ggml.token_type"));
  ASSIGN_OR_RETURN(fields.merges, file.Strings("tokenizer.ggml.merges"));
  ASSIGN_OR_RETURN(fields.bos_id, file.Int("tokenizer.ggml.bos_token_id", INT64_MIN, INT64_MAX));
  ASSIGN_OR_RETURN(fields.eos_id, file.Int("tokenizer.ggml.eos_token_id", INT64_MIN, INT64_MAX));
  ASSIGN_OR_RETURN(fields.add_bos, file.Bool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(fields.add_eos, file.Bool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(const auto chat_template, file.String("tokenizer.chat_template"));
  fields.chat_template = chat_template.value_or("");
  return SpecFromGgufMetadata(std::move(fields));
}

absl::StatusOr<OpenedModel> OpenGgufModel(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile file, OpenGguf(path));
  OpenedModel opened;
  opened.format = CheckpointFormat::kGguf;
  opened.config_origin = path;
  opened.model = std::make_unique<Model>();
  Model& model = *opened.model;
  ASSIGN_OR_RETURN(model.config, ParseGgufConfig(file));
  model.config.name = fs::path(path).stem().string();
  const GgufValue* tokenizer = file.Find("tokenizer.ggml.model");
  if (tokenizer == nullptr || tokenizer->text == "none" || tokenizer->text == "no_vocab") {
    model.tokenizer_error = absl::StrCat(path, ": no tokenizer (key \"tokenizer.ggml.model\")");
  } else {
    ASSIGN_OR_RETURN(TokenizerSpec spec, GgufTokenizerSpec(file));
    model.tokenizer_spec = std::make_shared<const TokenizerSpec>(spec);
    ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Create(std::move(spec)));
  }
  WarnOfTokenizer(&model);
  opened.files = std::move(file.files);
  model.config.weights_dtype = MostCommonType(opened.files);
  return opened;
}

absl::StatusOr<OpenedModel> Open(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
  }
  if (fs::is_directory(status)) return OpenHuggingFace(path);
  if (!fs::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": neither a directory nor a file"));
  }
  if (absl::EndsWith(path, ".safetensors") || absl::EndsWith(path, ".json")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": give the directory that holds this file, or a .gguf file"));
  }
  return OpenGgufModel(path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const LoadOptions& options) {
  ASSIGN_OR_RETURN(OpenedModel opened, Open(options.path));
  WeightLoadOptions weight_options;
  weight_options.format = opened.format;
  weight_options.config_origin = opened.config_origin;
  weight_options.weights_dtype = options.weights_dtype;
  weight_options.isa = options.isa;
  weight_options.num_threads = options.num_threads;
  weight_options.progress = options.progress;
  Model& model = *opened.model;
  RETURN_IF_ERROR(LoadWeights(opened.files, weight_options, &model));
  const std::vector<std::string> kept = DigestCachePaths(options.path);
  model.digest = ReadKeptDigest(kept, opened.files, model.config);
  if (model.digest.empty()) {
    model.digest = ComputeModelDigest(opened.files, model.config, options.num_threads);
    KeepDigest(kept, opened.files, model.config, model.digest);
  }
  return std::move(opened.model);
}

absl::StatusOr<std::unique_ptr<Model>> LoadModelHeader(const std::string& path) {
  ASSIGN_OR_RETURN(OpenedModel opened, Open(path));
  opened.model->digest = ReadKeptDigest(DigestCachePaths(path), opened.files, opened.model->config);
  return std::move(opened.model);
}

}  // namespace quire
