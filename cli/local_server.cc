#include "cli/local_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/terminal.h"
#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/status_macros.h"
#include "worker/server/worker_server.h"
#include "worker/worker.h"

namespace quire::cli {
namespace {

class LocalServerImpl final : public LocalServer {
 public:
  absl::Status Init(const std::string& model, const std::vector<std::string>& worker_flags) {
    FlagTable table("quire", "", "");
    WorkerOptions options;
    AddWorkerFlags(&table, &options);
    std::vector<std::string> arguments = {"--model", model};
    for (const std::string& flag : worker_flags) arguments.push_back(absl::StrCat("--", flag));
    RETURN_IF_ERROR(table.Parse(arguments, [](const char*) -> const char* { return nullptr; }));
    ProgressLine progress("loading " + model);
    ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                     Worker::Create(options, &log_, &page_, [&](int64_t done, int64_t total) {
                       progress.Update(done, total, /*bytes=*/true);
                     }));
    ASSIGN_OR_RETURN(
        server_,
        WorkerServer::Start(
            {.listen = "127.0.0.1:0", .metrics_listen = "", .cluster_secret = "", .drain_ms = 0},
            std::move(worker), &page_, &log_));
    return absl::OkStatus();
  }
  const std::string& target() const override { return server_->address(); }

 private:
  const Logger log_{"quire", LogLevel::kWarning};
  MetricsPage page_;
  std::unique_ptr<WorkerServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalServer>> LocalServer::Start(
    const std::string& model, const std::vector<std::string>& worker_flags) {
  auto server = std::make_unique<LocalServerImpl>();
  RETURN_IF_ERROR(server->Init(model, worker_flags));
  return server;
}

}  // namespace quire::cli
