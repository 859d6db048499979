// quire-worker: one model replica as a process.
#include <unistd.h>

#include <cstdio>

#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/rpc_server.h"
#include "worker/server/worker_server.h"

int main(int argc, char** argv) {
  using namespace quire;
  BlockTerminationSignals();
  FlagTable table("quire-worker", "quire-worker: runs one model and serves it.");
  WorkerOptions options;
  ProcessFlags process;
  process.listen = "127.0.0.1:8410";
  process.metrics_listen = "127.0.0.1:8411";
  AddWorkerFlags(&table, &options);
  AddProcessFlags(&table, &process);
  if (const int code = ParseFlagsOrExit(&table, argc, argv); code >= 0) return code;

  const Logger log("worker", ParseLogLevel(process.log_level));
  std::fputs(table.EffectiveYaml().c_str(), stderr);
  for (const std::string& note : table.notes()) log.Warning(note);
  const auto secret = ReadClusterSecret(process.cluster_secret_file);
  if (!secret.ok()) {
    log.Error(std::string(secret.status().message()));
    return 2;
  }
  MetricsPage page;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  auto worker = Worker::Create(options, &log, &page, [&](int64_t done, int64_t total) {
    if (terminal && total > 0) {
      std::fprintf(stderr, "\rloading %3d %%%s", static_cast<int>(100 * done / total),
                   done == total ? "\n" : "");
    }
  });
  if (!worker.ok()) {
    const std::string message(worker.status().message());
    log.Error(message);
    return message.rfind("--", 0) == 0 ? 2
                                       : 1;  // a flag is at fault, or else a file or the machine
  }
  auto server = WorkerServer::Start({.listen = process.listen,
                                     .metrics_listen = process.metrics_listen,
                                     .cluster_secret = *secret},
                                    *std::move(worker), &page, &log);
  if (!server.ok()) {
    log.Error(std::string(server.status().message()));
    return 1;
  }
  std::printf("ready grpc=%s metrics=%s\n", (*server)->address().c_str(),
              (*server)->metrics_address().c_str());
  std::fflush(stdout);
  const int signal = WaitForTermination();
  log.Info("going down", {{"signal", signal}});
  ArmShutdownWatchdog(20);
  (*server)->Stop();
  return 0;
}
