// RpcServer: a gRPC server with health, reflection and channelz, and an end that always comes.
//
// The header needs no gRPC headers. Owner: whoever starts it; Shutdown() and SetServing() from any
// thread.
#ifndef QUIRE_COMMON_RPC_RPC_SERVER_H_
#define QUIRE_COMMON_RPC_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace grpc {
class Service;
}

namespace quire {

struct RpcServerOptions {
  std::string address;                    // HOST:PORT, port 0 = any
  std::vector<grpc::Service*> services;   // must outlive the server
  std::vector<std::string> health_names;  // e.g. "quire.v1.InferenceService"; NOT_SERVING at first
  int32_t max_receive_bytes = 16 << 20;
};

class RpcServer {
 public:
  // Errors: INVALID_ARGUMENT or UNAVAILABLE (the port is taken), naming the address.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(RpcServerOptions options);
  ~RpcServer();  // Shutdown(0).
  RpcServer(const RpcServer&) = delete;

  int port() const { return port_; }
  const std::string& address() const { return address_; }  // with the real port

  // Health of all names, "" included.
  void SetServing(bool serving);

  // Health NOT_SERVING, no new calls; calls that are open after `grace_ms` are cancelled. Returns
  // when all have ended. Idempotent.
  void Shutdown(int64_t grace_ms);

 private:
  struct Impl;
  RpcServer() = default;
  int port_ = 0;
  std::string address_;
  std::unique_ptr<Impl> impl_;
};

// Blocks until SIGINT or SIGTERM came; a second one ends the process at once. Call
// BlockTerminationSignals() first thing in main(), before any thread starts.
void BlockTerminationSignals();
int WaitForTermination();

// From now on the process ends by itself after `seconds`, whatever hangs (exit status by SIGALRM).
void ArmShutdownWatchdog(int seconds);

}  // namespace quire

#endif  // QUIRE_COMMON_RPC_RPC_SERVER_H_
