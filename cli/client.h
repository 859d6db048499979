// Client of InferenceService for the command-line tool. Keeps gRPC out of the commands.
#ifndef QUIRE_CLI_CLIENT_H_
#define QUIRE_CLI_CLIENT_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/v1/inference.pb.h"
#include "quire/v1/worker.pb.h"

namespace quire::cli {

// One call that another thread may cancel. Reusable after the call has ended.
class Cancellation {
 public:
  Cancellation();
  ~Cancellation();
  void Cancel();  // from any thread; a call that starts later is cancelled too, until Reset
  void Reset();

 private:
  friend class Client;
  struct State;
  std::unique_ptr<State> state_;
};

class Client {
 public:
  explicit Client(const std::string& target);
  ~Client();

  // Waits until the server answers. Errors: UNAVAILABLE naming the target.
  absl::Status WaitReady(double timeout_seconds);

  // Calls `on_event` for each message until the stream ends. Errors: the call's status.
  absl::Status Generate(const v1::GenerateRequest& request, Cancellation* cancellation,
                        absl::FunctionRef<void(const v1::GenerateResponse&)> on_event);

  absl::StatusOr<v1::ListModelsResponse> ListModels();
  absl::StatusOr<v1::WorkerStats> GetWorkerStats();  // of a worker's own address
  const std::string& target() const { return target_; }

 private:
  struct Stubs;
  const std::string target_;
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_CLIENT_H_
