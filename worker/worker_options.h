// WorkerOptions: what the flags of a worker say, and the flags themselves. `quire-worker`,
// `quire up` and the in-process commands of `quire` share them.
#ifndef QUIRE_WORKER_WORKER_OPTIONS_H_
#define QUIRE_WORKER_WORKER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/config/flags.h"
#include "common/metrics/metrics.h"

namespace quire {

struct WorkerOptions {
  std::string model;              // directory or .gguf file
  std::string served_model_name;  // "" = the model's own name
  std::string device = "auto";
  std::string weights_dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::string quantize;  // "" or "kv_cache", which means kv_cache_dtype fp8
  bool enable_paged_attn = true;
  int32_t block_size = 16;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 0;  // 0 = auto: 256 on the CPU
  int32_t max_step_ms = 100;
  int32_t max_model_len = 0;    // 0 = auto: the model's, as far as the KV pool can hold it
  int64_t kv_cache_memory = 0;  // bytes; 0 = auto
  bool enable_prefix_caching = true;
  int64_t cache_ttl = 300;  // seconds
  int32_t threads = 0;      // 0 = auto: all processors
  bool deterministic = true;
  int32_t max_queue = 4096;  // waiting requests

  // Labels of this worker's metrics; needed where several share one page.
  MetricLabels metric_labels;
};

// Registers the worker's flags and their checks.
void AddWorkerFlags(FlagTable* table, WorkerOptions* options);

// Errors: INVALID_ARGUMENT with every fault, one a line.
absl::Status CheckWorkerOptions(const WorkerOptions& options);

}  // namespace quire

#endif  // QUIRE_WORKER_WORKER_OPTIONS_H_
