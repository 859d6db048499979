// Engine: the shell around EngineCore: one thread that owns the core and drives the backend (on the
// CPU that thread is compute thread 0), a bounded queue of messages in, and a sink for outputs.
#ifndef QUIRE_WORKER_ENGINE_ENGINE_H_
#define QUIRE_WORKER_ENGINE_ENGINE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/backend/backend.h"
#include "worker/engine/engine_core.h"

namespace quire {

class Engine {
 public:
  // Called on the engine thread after each step (or message) that gave outputs. Must not block and
  // must not call back into the engine other than through the message functions below.
  using Sink = std::function<void(EngineOutputs outputs)>;

  // `backend` and `clock` must outlive the engine. Fills in num_blocks and num_slots from the
  // backend.
  Engine(EngineOptions options, Backend* backend, const Clock* clock, Sink sink);
  ~Engine();  // Stop().
  Engine(const Engine&) = delete;

  // From any thread. Submit returns RESOURCE_EXHAUSTED if the message queue is full; everything
  // after that comes through the sink.
  absl::Status Submit(EngineRequest request);
  void Cancel(RequestId id, absl::Status status);
  void Consumed(RequestId id, int32_t num_tokens);

  // Refuses new requests; `done` once the last one has ended.
  void Drain();
  bool drained() const;

  // Ends all requests with UNAVAILABLE and joins the thread. Idempotent.
  void Stop();

  // A copy of the core's statistics as of the last step. From any thread.
  EngineStats stats() const;

  // OK, or why the engine stopped serving (a backend error that sticks).
  absl::Status health() const;
  // Age of the last completed step while work is pending, microseconds; 0 when idle.
  int64_t stalled_us() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_ENGINE_H_
