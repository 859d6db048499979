// quire inspect: what a model file holds, or what a running server serves.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "common/text/chat_template.h"
#include "kernels/kv_layout/kv_layout.h"
#include "worker/model/model.h"

namespace quire::cli {
namespace {

struct InspectFlags {
  std::string path;
  std::string target;
  bool json = false;
};

int64_t KvTokenBytes(const ModelConfig& config, KvDtype dtype) {
  KvLayout layout;
  layout.dtype = dtype;
  layout.num_layers = config.num_layers;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_size = config.head_size;
  return layout.page_bytes() / layout.block_size;
}

// Weights of the decoder and the embedding, each matrix once.
int64_t NumParameters(const ModelConfig& c) {
  const int64_t layer = int64_t{c.hidden} * (2 * c.q_width() + 2 * c.kv_width()) +
                        int64_t{3} * c.hidden * c.inner + 2 * c.hidden;
  const int64_t embedding = int64_t{c.vocab} * c.hidden * (c.tied_embeddings ? 1 : 2);
  return layer * c.num_layers + embedding + c.hidden;
}

nlohmann::ordered_json Describe(const Model& model) {
  const ModelConfig& c = model.config;
  nlohmann::ordered_json out = {
      {"name", c.name},
      {"architecture", ArchitectureName(c.architecture)},
      {"parameters", NumParameters(c)},
      {"weights", c.weights_dtype},
      {"layers", c.num_layers},
      {"hidden", c.hidden},
      {"inner", c.inner},
      {"q_heads", c.num_q_heads},
      {"kv_heads", c.num_kv_heads},
      {"head_size", c.head_size},
      {"vocabulary", c.vocab},
      {"max_position", c.max_position},
      {"rope_theta", c.rope_theta},
      {"tied_embeddings", c.tied_embeddings},
      {"digest", model.digest},
      {"kv_bytes_per_token_bf16", KvTokenBytes(c, KvDtype::kBf16)},
      {"kv_bytes_per_token_fp8", KvTokenBytes(c, KvDtype::kFp8E4m3)},
      {"end_tokens", c.eos_ids},
  };
  if (model.tokenizer == nullptr) {
    out["tokenizer"] = "none: " + model.tokenizer_error;
    return out;
  }
  out["tokenizer"] = absl::StrFormat("byte-level BPE, %d tokens", model.tokenizer->vocab_size());
  const auto chat = ChatTemplate::Create(model.tokenizer->chat_template(), c.name);
  out["chat_template"] = chat.ok() ? std::string((*chat)->family())
                                   : "not supported: " + std::string(chat.status().message());
  return out;
}

void Print(const nlohmann::ordered_json& object, bool json) {
  if (json) {
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  for (const auto& [key, value] : object.items()) {
    std::printf(
        "%-24s %s\n", key.c_str(),
        value.is_string() ? Printable(value.get<std::string>()).c_str() : value.dump().c_str());
  }
}

int InspectModel(const InspectFlags& flags) {
  const auto model = LoadModelHeader(flags.path);
  if (!model.ok()) {
    std::fprintf(stderr, "quire inspect: %s\n", model.status().ToString().c_str());
    return kExitFailed;
  }
  Print(Describe(**model), flags.json);
  return kExitOk;
}

int InspectServer(const InspectFlags& flags) {
  Client client(flags.target);
  absl::Status status = client.WaitReady(5);
  if (status.ok()) {
    const auto models = client.ListModels();
    status = models.status();
    for (int i = 0; status.ok() && i < models->models_size(); ++i) {
      const v1::ModelInfo& m = models->models(i);
      Print({{"model", m.name()},
             {"digest", m.digest()},
             {"weights", m.weights()},
             {"max_model_len", m.max_model_len()},
             {"kv_layout", m.kv_layout()},
             {"block_size", m.block_size()},
             {"chat_template", m.chat_template()}},
            flags.json);
    }
  }
  if (!status.ok()) {
    std::fprintf(stderr, "quire inspect: %s\n", status.ToString().c_str());
    return kExitFailed;
  }
  // Only workers have these; a router says UNIMPLEMENTED.
  const auto stats = client.GetWorkerStats();
  if (stats.ok()) {
    Print({{"worker", stats->worker()},
           {"requests_running", stats->requests_running()},
           {"requests_waiting", stats->requests_waiting()},
           {"blocks_total", stats->blocks_total()},
           {"blocks_held", stats->blocks_held()},
           {"blocks_cached", stats->blocks_cached()},
           {"blocks_free", stats->blocks_free()},
           {"generated_tokens", stats->generated_tokens()},
           {"prefix_hits_tokens", stats->prefix_hits_tokens()},
           {"prefix_queries_tokens", stats->prefix_queries_tokens()},
           {"preemptions", stats->preemptions()}},
          flags.json);
  }
  return kExitOk;
}

}  // namespace

void RegisterInspect(CLI::App& app, RunFunction* run) {
  CLI::App* inspect = app.add_subcommand("inspect", "describe a model or a running server");
  auto flags = std::make_shared<InspectFlags>();
  auto* path = inspect->add_option("model", flags->path, "a model: directory or .gguf file");
  auto* target = inspect->add_option("--target", flags->target, "address of a router or worker");
  path->excludes(target);
  inspect->add_flag("--json", flags->json, "one JSON object a line");
  inspect->callback([flags, run, path, target] {
    if (path->count() + target->count() == 0) throw CLI::RequiredError("a model or --target");
    *run = [flags] { return flags->target.empty() ? InspectModel(*flags) : InspectServer(*flags); };
  });
}

}  // namespace quire::cli
