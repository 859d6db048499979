// Backend: the only place that knows whether memory and kernels are CPU or CUDA. It owns the KV
// pool's bytes, the sampler slots and the activations; the engine core owns which block is whose.
#ifndef QUIRE_WORKER_BACKEND_BACKEND_H_
#define QUIRE_WORKER_BACKEND_BACKEND_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/kv_layout/kv_layout.h"
#include "worker/engine/plan.h"

namespace quire {

class Backend {
 public:
  virtual ~Backend() = default;

  // Starts the step (a device enqueues it; the CPU runs it right here on the caller's thread).
  // `plan` must stay unchanged until the step's result was taken. Steps run in order.
  // Errors: INTERNAL if the plan breaks a requirement; the backend is then unusable.
  virtual absl::Status Launch(const StepPlan& plan) = 0;

  // The result of the oldest launched step; waits for it.
  virtual absl::StatusOr<StepResult> Finish() = 0;

  virtual int32_t num_blocks() const = 0;  // of the device tier
  virtual const KvLayout& kv_layout() const = 0;
  virtual int32_t num_slots() const = 0;  // sampler slots
  virtual int32_t vocab() const = 0;
  // What the block-key root calls numerics, e.g. "cpu-avx2-bf16".
  virtual std::string numerics() const = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_BACKEND_BACKEND_H_
