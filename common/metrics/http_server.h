// HttpServer: a small HTTP/1.1 server for /metrics, /healthz and /readyz of one process.
//
// One thread, non-blocking sockets, one request a connection. Bounds: 64 connections (more are
// closed at once), 8 KiB of header, 5 s from accept to the last byte.
#ifndef QUIRE_COMMON_METRICS_HTTP_SERVER_H_
#define QUIRE_COMMON_METRICS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace quire {

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  // Called on the server's thread for GET and HEAD; must be quick. `path` without the query.
  using Handler = std::function<HttpResponse(const std::string& path)>;

  // `address` is HOST:PORT, port 0 = any. Errors: INVALID_ARGUMENT (no such address), UNAVAILABLE
  // (the port is taken), naming the address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;

  int port() const { return port_; }
  const std::string& address() const { return address_; }  // with the real port

 private:
  class Impl;
  HttpServer() = default;
  int port_ = 0;
  std::string address_;
  std::unique_ptr<Impl> impl_;
};

class MetricsPage;

// The handler that every process has: /metrics from `page`; /healthz is 200 while the process runs;
// /readyz is 200 or 503 with the reason that `ready` gives ("" = ready).
HttpServer::Handler ObservabilityHandler(const MetricsPage* page,
                                         std::function<std::string()> ready);

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_HTTP_SERVER_H_
