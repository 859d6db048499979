// CachesvcServer: the cache service's process. So far a shell: it answers GetStats, health and
// reflection; pages come with its own issue.
#ifndef QUIRE_CACHESVC_CACHESVC_SERVER_H_
#define QUIRE_CACHESVC_CACHESVC_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

namespace quire {

struct CachesvcServerOptions {
  std::string listen = "127.0.0.1:8420";
  std::string metrics_listen;  // "" = none
};

class CachesvcServer {
 public:
  // `page` and `log` must outlive the server; `log` may be null. Errors: as RpcServer::Start.
  static absl::StatusOr<std::unique_ptr<CachesvcServer>> Start(const CachesvcServerOptions& options,
                                                               MetricsPage* page,
                                                               const Logger* log);
  ~CachesvcServer();  // Stop().

  int port() const;
  const std::string& address() const;
  const std::string& metrics_address() const;
  void Stop();

 private:
  class Impl;
  explicit CachesvcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_CACHESVC_CACHESVC_SERVER_H_
