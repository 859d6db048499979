// Worker: one model replica, assembled: model, backend, engine, tokenizer, chat template. It turns
// Submit messages into engine requests and engine outputs into step messages. No transport: the
// gRPC server (worker/server) and the in-process commands of `quire` stand on it.
//
// Threads: the engine's own, and a delivery thread that converts and hands out what a step gave, so
// that the engine thread never waits for a client's serialisation. All functions may be called from
// any thread.
#ifndef QUIRE_WORKER_WORKER_H_
#define QUIRE_WORKER_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/inference/dispatcher.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "worker/backend/backend.h"
#include "worker/engine/engine.h"
#include "worker/model/model.h"
#include "worker/worker_options.h"

namespace quire {

// Where the steps of one source of requests (a router's stream, or the local front) go.
class StepSink {
 public:
  virtual ~StepSink() = default;
  // One message a step with what it gave for all requests of this sink. Called on the delivery
  // thread; must not block.
  virtual void OnStep(v1::StepOutput output) = 0;
};

class Worker {
 public:
  // Loads the model and starts the engine. `log` and `page` must outlive the worker; either may be
  // null. `progress` (may be null) is called with bytes loaded and total.
  // Errors: as LoadModel, CreateCpuBackend; INVALID_ARGUMENT naming flag, value and limit.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(
      const WorkerOptions& options, const Logger* log, MetricsPage* page,
      const std::function<void(int64_t, int64_t)>& progress);

  // The same from parts; for tests with a backend of their own.
  static absl::StatusOr<std::unique_ptr<Worker>> Assemble(const WorkerOptions& options,
                                                          std::shared_ptr<const Model> model,
                                                          std::unique_ptr<Backend> backend,
                                                          const Logger* log, MetricsPage* page);
  ~Worker();  // Stop().
  Worker(const Worker&) = delete;

  const std::shared_ptr<const ServedModel>& served_model() const;
  const Model& model() const;
  Backend& backend();
  const WorkerOptions& options() const;

  // What a router needs; without the files if `known_digest` is the worker's.
  v1::GetTokenizerResponse TokenizerFiles(const std::string& known_digest) const;

  // `submit.id` is unique among the sink's. Everything that follows comes through the sink.
  // Errors: INVALID_ARGUMENT, FAILED_PRECONDITION (another model or another block key),
  // RESOURCE_EXHAUSTED (queue full; with retry-after), UNAVAILABLE (draining or stopped).
  absl::Status Submit(const std::shared_ptr<StepSink>& sink, const v1::Submit& submit);
  // Nothing more comes for this request (a step that is being delivered may still hold it).
  void Cancel(const StepSink* sink, uint64_t id, absl::Status status);
  void CancelAll(const StepSink* sink, const absl::Status& status);
  void Consumed(const StepSink* sink, uint64_t id, uint32_t num_tokens);

  // Refuses new requests; running ones go on.
  void Drain();
  bool draining() const;
  int num_requests() const;  // submitted and not ended

  // Ends all requests with UNAVAILABLE, delivers that, joins the threads. Idempotent.
  void Stop();

  EngineStats stats() const;
  v1::WorkerStats StatsMessage() const;
  absl::Status health() const;  // OK, or why the engine serves no more
  // Called once, on the delivery thread, within a second after health() became an error. Set it
  // before requests come.
  void set_on_failed(std::function<void(const absl::Status&)> on_failed);

 private:
  class Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The front's way to the engine of the same process.
class LocalDispatcher final : public Dispatcher {
 public:
  // `name` is what Started.worker says. `worker` must outlive this.
  LocalDispatcher(Worker* worker, const std::string& name);
  ~LocalDispatcher() override;
  void set_name(const std::string& name);  // once the port is known

  absl::StatusOr<std::shared_ptr<const ServedModel>> FindModel(const std::string& name) override;
  std::vector<std::shared_ptr<const ServedModel>> Models() override;
  uint64_t NewRequestId() override;
  absl::Status Submit(v1::Submit submit, std::shared_ptr<const ServedModel> model,
                      std::shared_ptr<RequestSink> sink) override;
  void Cancel(uint64_t id, bool deadline_exceeded) override;
  void Consumed(uint64_t id, uint32_t num_tokens) override;

 private:
  class Sink;
  Worker* const worker_;
  std::shared_ptr<Sink> sink_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_WORKER_H_
