// WorkerServer: the gRPC and HTTP shell around a Worker: InferenceService for clients,
// WorkerService for routers, health, reflection, /metrics. No gRPC header is needed to use it.
//
// Owner: whoever starts it. Start, then wait for a signal, then Stop.
#ifndef QUIRE_WORKER_SERVER_WORKER_SERVER_H_
#define QUIRE_WORKER_SERVER_WORKER_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "worker/worker.h"

namespace quire {

struct WorkerServerOptions {
  std::string listen = "127.0.0.1:8410";
  std::string metrics_listen;  // "" = no HTTP server of its own
  std::string cluster_secret;  // "" = no salt
  int64_t drain_ms = 2000;     // how long Stop() lets running requests go on
};

class WorkerServer {
 public:
  // `log` must outlive the server; null = silent. `page` is where the front's metrics go (the
  // worker's own went there when it was created); it must outlive the server.
  // Errors: UNAVAILABLE or INVALID_ARGUMENT naming the address.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const WorkerServerOptions& options,
                                                             std::unique_ptr<Worker> worker,
                                                             MetricsPage* page, const Logger* log);
  ~WorkerServer();  // Stop().
  WorkerServer(const WorkerServer&) = delete;

  int port() const;
  const std::string& address() const;          // with the real port
  const std::string& metrics_address() const;  // "" = none
  Worker& worker();

  // Health NOT_SERVING, new requests refused; running ones may go on for drain_ms, then end with
  // UNAVAILABLE; then everything is closed. Seconds at most. Idempotent.
  void Stop();

 private:
  class Impl;
  explicit WorkerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_SERVER_WORKER_SERVER_H_
