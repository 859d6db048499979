// quire-cachesvc: the cache service as a process.
#include <cstdio>

#include "cachesvc/cachesvc_server.h"
#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/rpc_server.h"

int main(int argc, char** argv) {
  using namespace quire;
  BlockTerminationSignals();
  FlagTable table("quire-cachesvc", "quire-cachesvc: holds KV pages for workers (a shell so far).");
  ProcessFlags process;
  process.listen = "127.0.0.1:8420";
  process.metrics_listen = "127.0.0.1:8421";
  AddProcessFlags(&table, &process);
  if (const int code = ParseFlagsOrExit(&table, argc, argv); code >= 0) return code;

  const Logger log("cachesvc", ParseLogLevel(process.log_level));
  std::fputs(table.EffectiveYaml().c_str(), stderr);
  for (const std::string& note : table.notes()) log.Warning(note);
  MetricsPage page;
  auto server = CachesvcServer::Start({process.listen, process.metrics_listen}, &page, &log);
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
