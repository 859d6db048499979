// LocalServer: a worker inside this process, for commands that were given a model and no server.
#ifndef QUIRE_CLI_LOCAL_SERVER_H_
#define QUIRE_CLI_LOCAL_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::cli {

class LocalServer {
 public:
  virtual ~LocalServer() = default;  // Stops it.

  // Loads the model (progress on a terminal) and serves it on a free loopback port.
  // `worker_flags`: "name=value" of quire-worker. Errors: those of loading, and INVALID_ARGUMENT
  // naming every wrong flag.
  static absl::StatusOr<std::unique_ptr<LocalServer>> Start(
      const std::string& model, const std::vector<std::string>& worker_flags);

  virtual const std::string& target() const = 0;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOCAL_SERVER_H_
