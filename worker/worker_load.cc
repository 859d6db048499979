// Worker::Create: from options to a running worker on the CPU backend.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/memory.h"
#include "common/status_macros.h"
#include "kernels/common/isa.h"
#include "worker/backend/cpu_backend.h"
#include "worker/worker.h"

namespace quire {
namespace {

absl::StatusOr<KvDtype> ChooseKvDtype(const WorkerOptions& options, const ModelConfig& config) {
  if (options.quantize == "kv_cache") return KvDtype::kFp8E4m3;
  if (options.kv_cache_dtype != "auto") return ParseKvDtype(options.kv_cache_dtype);
  // The model's type; what is no float type of ours (F16, quantised, FP8 weights) reads as BF16.
  return config.weights_dtype == "f32" ? KvDtype::kF32 : KvDtype::kBf16;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(
    const WorkerOptions& options, const Logger* log, MetricsPage* page,
    const std::function<void(int64_t, int64_t)>& progress) {
  RETURN_IF_ERROR(CheckWorkerOptions(options));
  LoadOptions load;
  load.path = options.model;
  load.weights_dtype = options.weights_dtype;
  load.isa = DetectIsa();
  load.num_threads = options.threads > 0
                         ? options.threads
                         : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  load.progress = progress;
  ASSIGN_OR_RETURN(std::unique_ptr<Model> loaded, LoadModel(load));
  const std::shared_ptr<const Model> model = std::move(loaded);

  CpuBackendOptions backend;
  backend.num_threads = load.num_threads;
  backend.isa = load.isa;
  ASSIGN_OR_RETURN(backend.kv_dtype, ChooseKvDtype(options, model->config));
  backend.block_size = options.block_size;
  backend.kv_memory_bytes = options.kv_cache_memory;
  backend.max_num_seqs = options.max_num_seqs;
  if (options.max_num_batched_tokens > 0) {
    backend.max_num_batched_tokens = options.max_num_batched_tokens;
  }
  backend.max_model_len = options.max_model_len > 0
                              ? std::min(options.max_model_len, model->config.max_position)
                              : model->config.max_position;
  ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> cpu, CreateCpuBackend(model, backend));
  if (log != nullptr) {
    log->Info("backend ready",
              {{"device", "cpu"},
               {"isa", IsaName(load.isa)},
               {"threads", load.num_threads},
               {"kv_cache_dtype", KvDtypeName(backend.kv_dtype)},
               {"kv_cache_bytes", cpu->kv_pool_bytes()},
               {"kv_cache_tokens", int64_t{cpu->num_blocks()} * options.block_size},
               {"workspace_bytes", cpu->workspace_bytes()}});
  }
  return Assemble(options, model, std::move(cpu), log, page);
}

}  // namespace quire
