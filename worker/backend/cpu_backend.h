// CpuBackend: runs step plans on the CPU with the SIMD kernels of the machine's best instruction
// set.
//
// Launch() computes the step right on the caller's thread, which is thread 0 of the pool; Finish()
// hands out the stored result. Everything that a step needs is allocated at creation: the KV pool
// (one page a block, in 2 MiB pages), activations for max_batched_tokens rows, kernel scratch.
//
// Owner: the engine thread.
#ifndef QUIRE_WORKER_BACKEND_CPU_BACKEND_H_
#define QUIRE_WORKER_BACKEND_CPU_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/common/isa.h"
#include "kernels/kv_layout/kv_layout.h"
#include "worker/backend/backend.h"
#include "worker/model/model.h"

namespace quire {

struct CpuBackendOptions {
  int num_threads = 1;
  Isa isa = Isa::kPortable;  // the one that the model was packed for
  KvDtype kv_dtype = KvDtype::kBf16;
  int32_t block_size = 16;
  // Bytes of the KV pool; 0 = automatic: a quarter of the free memory, no more than max_num_seqs
  // sequences of max_model_len can use.
  int64_t kv_memory_bytes = 0;
  int32_t max_num_seqs = 256;            // sampler slots
  int32_t max_num_batched_tokens = 256;  // rows of a step
  int32_t max_model_len = 2048;          // positions of a sequence
};

// Where a step's time went, for `quire bench engine --profile`. Seconds since creation.
struct StepProfile {
  double embed = 0, norm = 0, qkv = 0, rope = 0, kv_write = 0, attention = 0, o = 0, gate_up = 0,
         swiglu = 0, down = 0, head = 0, sample = 0;
};

class CpuBackend : public Backend {
 public:
  // Called for each row whose logits were computed, before sampling touches them.
  using LogitsObserver =
      std::function<void(const StepPlan&, int32_t row, std::span<const float> logits)>;
  virtual void set_logits_observer(LogitsObserver observer) = 0;
  virtual const StepProfile& profile() const = 0;
  // Bytes of pool memory that hold tokens, and of everything else that was allocated.
  virtual int64_t kv_pool_bytes() const = 0;
  virtual int64_t workspace_bytes() const = 0;
};

// Errors: INVALID_ARGUMENT or UNIMPLEMENTED naming the option, its value and the limit (a pool that
// holds less than one block, a head size that no kernel has); RESOURCE_EXHAUSTED if the memory
// cannot be had.
absl::StatusOr<std::unique_ptr<CpuBackend>> CreateCpuBackend(std::shared_ptr<const Model> model,
                                                             const CpuBackendOptions& options);

}  // namespace quire

#endif  // QUIRE_WORKER_BACKEND_CPU_BACKEND_H_
