// quire up: router, worker(s) and, if wanted, a cache service in this one process. They talk over
// loopback gRPC as they would in a cluster; stores are embedded.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cachesvc/cachesvc_server.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/rpc_server.h"
#include "common/status_macros.h"
#include "router/router_server.h"
#include "worker/server/worker_server.h"
#include "worker/worker.h"
#include "worker/worker_options.h"

namespace quire::cli {
namespace {

struct UpFlags {
  RouterServerOptions router;
  WorkerOptions worker;
  ProcessFlags process;
  int32_t num_workers = 1;
  bool with_cachesvc = false;
};

void AddUpFlags(FlagTable* table, UpFlags* flags) {
  flags->router.http_listen = "127.0.0.1:8401";
  flags->process.listen = flags->router.listen;
  AddWorkerFlags(table, &flags->worker);
  AddRouterFlags(table, &flags->router.router, &flags->router.http_listen, /*need_workers=*/false);
  table->AddInt("workers", &flags->num_workers, 1, 64, "number of workers to start");
  table->AddBool("with-cachesvc", &flags->with_cachesvc, "start a cache service too");
  AddProcessFlags(table, &flags->process);
}

// Everything that runs, in the order in which it started.
struct Running {
  std::unique_ptr<CachesvcServer> cachesvc;
  std::vector<std::unique_ptr<WorkerServer>> workers;
  std::unique_ptr<RouterServer> router;

  // The router first: it ends its requests while the workers still answer.
  void Stop() {
    if (router != nullptr) router->Stop();
    for (auto& worker : workers) worker->Stop();
    if (cachesvc != nullptr) cachesvc->Stop();
  }
};

absl::Status StartAll(UpFlags flags, const FlagTable& table, MetricsPage* page, const Logger* log,
                      Running* running) {
  ASSIGN_OR_RETURN(const std::string secret, ReadClusterSecret(flags.process.cluster_secret_file));
  if (flags.with_cachesvc) {
    ASSIGN_OR_RETURN(
        running->cachesvc,
        CachesvcServer::Start({.listen = "127.0.0.1:0", .metrics_listen = ""}, page, log));
  }
  for (int32_t i = 0; i < flags.num_workers; ++i) {
    WorkerOptions options = flags.worker;
    if (flags.num_workers > 1) options.metric_labels = {{"worker", absl::StrCat(i)}};
    ProgressLine progress(absl::StrCat("loading ", options.model));
    ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker,
                     Worker::Create(options, log, page, [&](int64_t done, int64_t total) {
                       progress.Update(done, total, /*bytes=*/true);
                     }));
    progress.Clear();
    ASSIGN_OR_RETURN(auto server,
                     WorkerServer::Start(
                         {.listen = "127.0.0.1:0", .metrics_listen = "", .cluster_secret = secret},
                         std::move(worker), page, log));
    flags.router.router.workers.push_back(server->address());
    running->workers.push_back(std::move(server));
  }
  flags.router.listen = flags.process.listen;
  flags.router.metrics_listen = flags.process.metrics_listen;
  flags.router.cluster_secret = secret;
  flags.router.config = table.Effective();
  ASSIGN_OR_RETURN(running->router, RouterServer::Start(flags.router, page, log));
  if (!running->router->WaitReady(30'000)) {
    return absl::UnavailableError("the router reached no worker within 30 s");
  }
  return absl::OkStatus();
}

int RunUp(const std::vector<std::string>& arguments) {
  BlockTerminationSignals();
  FlagTable table("quire up",
                  "quire up: serves a model on this machine, router and workers together.",
                  "--model PATH [flags]");
  UpFlags flags;
  AddUpFlags(&table, &flags);
  if (const int code = ParseFlagsOrExit(&table, arguments); code >= 0) return code;

  const Logger log("quire", ParseLogLevel(flags.process.log_level));
  std::fputs(table.EffectiveYaml().c_str(), stderr);
  for (const std::string& note : table.notes()) log.Warning(note);
  MetricsPage page;
  Running running;
  const absl::Status started = StartAll(flags, table, &page, &log, &running);
  if (!started.ok()) {
    log.Error(std::string(started.message()));
    running.Stop();
    return started.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailed;
  }
  std::string workers;
  for (const auto& worker : running.workers) {
    absl::StrAppend(&workers, workers.empty() ? "" : ",", worker->address());
  }
  std::printf("ready grpc=%s http=%s metrics=%s workers=%s%s\n", running.router->address().c_str(),
              running.router->http_address().c_str(), running.router->metrics_address().c_str(),
              workers.c_str(),
              running.cachesvc != nullptr
                  ? absl::StrCat(" cachesvc=", running.cachesvc->address()).c_str()
                  : "");
  std::fflush(stdout);
  const int signal = WaitForTermination();
  log.Info("going down", {{"signal", signal}});
  ArmShutdownWatchdog(20);
  running.Stop();
  return kExitOk;
}

}  // namespace

void RegisterUp(CLI::App& app, RunFunction* run) {
  CLI::App* up = app.add_subcommand("up", "serve a model on this machine (--help lists the flags)");
  // The flags are those of router and worker, in the same table as in those programs.
  up->set_help_flag();
  up->prefix_command();
  up->callback([up, run] { *run = [arguments = up->remaining()] { return RunUp(arguments); }; });
}

}  // namespace quire::cli
