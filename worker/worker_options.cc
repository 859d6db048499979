#include "worker/worker_options.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quire {

void AddWorkerFlags(FlagTable* table, WorkerOptions* options) {
  table->AddString("model", &options->model, "Hugging Face directory or .gguf file to serve");
  table->AddString("served-model-name", &options->served_model_name,
                   "name that requests use; empty = the model's own");
  table->AddString("device", &options->device, "cpu, cuda:N or auto");
  table->AddChoice("weights-dtype", &options->weights_dtype,
                   {"auto", "f32", "bf16", "int8", "int4"},
                   "weights in memory; auto = what the file holds, in the nearest fast form");
  table->AddChoice("kv-cache-dtype", &options->kv_cache_dtype,
                   {"auto", "f32", "bf16", "fp8", "fp8_e5m2"},
                   "KV cache; auto = the model's type, fp8 = e4m3 with a scale per token and head");
  table->AddString("quantize", &options->quantize, "kv_cache means --kv-cache-dtype fp8");
  table->AddBool("enable-paged-attn", &options->enable_paged_attn,
                 "false: one contiguous reservation of --max-model-len a sequence, for comparison");
  table->AddInt("block-size", &options->block_size, 1, 1024,
                "token positions of a block: 16 or 32");
  table->AddInt("max-num-seqs", &options->max_num_seqs, 1, 65536, "sequences that run at once");
  table->AddIntOrAuto("max-num-batched-tokens", &options->max_num_batched_tokens, 1, 1 << 20,
                      "tokens of a step; auto = 256 on the CPU");
  table->AddInt("max-step-ms", &options->max_step_ms, 1, 60'000,
                "target for a step: prefill chunks shrink when steps take longer");
  table->AddIntOrAuto("max-model-len", &options->max_model_len, 1, 1 << 24,
                      "positions of a sequence, prompt + answer; auto = the model's own limit, as "
                      "far as the KV cache can hold one sequence");
  table->AddBytes("kv-cache-memory", &options->kv_cache_memory,
                  "bytes of the KV cache; auto = a quarter of the free memory on the CPU");
  table->AddBool("enable-prefix-caching", &options->enable_prefix_caching,
                 "keep and share the KV of common prefixes");
  table->AddInt("cache-ttl", &options->cache_ttl, 0, 1 << 30,
                "seconds that `cacheable` prefixes are pinned");
  table->AddIntOrAuto("threads", &options->threads, 1, 1024,
                      "compute threads of the CPU backend; auto = all processors");
  table->AddBool("deterministic", &options->deterministic,
                 "the same bits whatever runs beside a request; the CPU backend always is");
  table->AddInt("max-queue", &options->max_queue, 1, 1 << 20,
                "requests that may wait; more are refused with RESOURCE_EXHAUSTED");
  table->AddCheck([options] { return CheckWorkerOptions(*options); });
}

absl::Status CheckWorkerOptions(const WorkerOptions& options) {
  std::vector<std::string> faults;
  if (options.model.empty()) {
    faults.push_back("--model is needed: a Hugging Face directory or a .gguf file");
  }
  if (options.device.rfind("cuda", 0) == 0) {
    faults.push_back(absl::StrCat("--device is '", options.device,
                                  "': this build has no CUDA backend; use cpu or auto"));
  } else if (options.device != "cpu" && options.device != "auto") {
    faults.push_back(
        absl::StrCat("--device is '", options.device, "': must be cpu, cuda:N or auto"));
  }
  if (options.block_size != 16 && options.block_size != 32) {
    faults.push_back(absl::StrCat("--block-size is ", options.block_size, ": must be 16 or 32"));
  }
  if (!options.quantize.empty() && options.quantize != "kv_cache") {
    faults.push_back(absl::StrCat("--quantize is '", options.quantize,
                                  "': must be kv_cache (weights: --weights-dtype)"));
  }
  if (options.quantize == "kv_cache" && options.kv_cache_dtype != "auto" &&
      options.kv_cache_dtype != "fp8") {
    faults.push_back(absl::StrCat("--quantize kv_cache means --kv-cache-dtype fp8, which is '",
                                  options.kv_cache_dtype, "'"));
  }
  if (!options.deterministic) {
    faults.push_back("--deterministic is 'false': the CPU backend cannot be anything else");
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
}

}  // namespace quire
