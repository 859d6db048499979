// RouterServer: the gRPC and HTTP shell around a Router: InferenceService, AdminService, health,
// reflection, /metrics. No gRPC header is needed to use it.
//
// Owner: whoever starts it. Start, then wait for a signal, then Stop.
#ifndef QUIRE_ROUTER_ROUTER_SERVER_H_
#define QUIRE_ROUTER_ROUTER_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "router/router.h"

namespace quire {

struct RouterServerOptions {
  RouterOptions router;
  std::string listen = "127.0.0.1:8400";
  std::string http_listen;             // "" = none
  std::string metrics_listen;          // "" = none but http_listen
  std::string cluster_secret;          // "" = no salt
  int64_t drain_ms = 2000;             // how long Stop() lets running requests go on
  std::vector<EffectiveValue> config;  // what GetConfig answers
};

class RouterServer {
 public:
  // Health is SERVING as soon as a worker is connected. `page` and `log` must outlive the server;
  // `log` may be null. Errors: UNAVAILABLE or INVALID_ARGUMENT naming the address.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(const RouterServerOptions& options,
                                                             MetricsPage* page, const Logger* log);
  ~RouterServer();  // Stop().
  RouterServer(const RouterServer&) = delete;

  int port() const;
  const std::string& address() const;          // with the real port
  const std::string& http_address() const;     // "" = none
  const std::string& metrics_address() const;  // "" = none
  Router& router();

  // Waits until a worker is connected. False if `timeout_ms` passed.
  bool WaitReady(int64_t timeout_ms);

  // As WorkerServer::Stop().
  void Stop();

 private:
  class Impl;
  explicit RouterServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Flags --workers, --max-queue, --http-listen with their checks. `need_workers` is false where the
// caller starts them itself (`quire up`).
void AddRouterFlags(FlagTable* table, RouterOptions* options, std::string* http_listen,
                    bool need_workers);

}  // namespace quire

#endif  // QUIRE_ROUTER_ROUTER_SERVER_H_
