// quire-router: the router as a process.
#include <cstdio>

#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/rpc_server.h"
#include "router/router_server.h"

int main(int argc, char** argv) {
  using namespace quire;
  BlockTerminationSignals();
  FlagTable table("quire-router", "quire-router: places requests on workers and streams back.");
  RouterServerOptions options;
  options.http_listen = "127.0.0.1:8401";
  ProcessFlags process;
  process.listen = options.listen;
  AddRouterFlags(&table, &options.router, &options.http_listen, /*need_workers=*/true);
  AddProcessFlags(&table, &process);
  if (const int code = ParseFlagsOrExit(&table, argc, argv); code >= 0) return code;

  const Logger log("router", ParseLogLevel(process.log_level));
  std::fputs(table.EffectiveYaml().c_str(), stderr);
  for (const std::string& note : table.notes()) log.Warning(note);
  const auto secret = ReadClusterSecret(process.cluster_secret_file);
  if (!secret.ok()) {
    log.Error(std::string(secret.status().message()));
    return 2;
  }
  options.listen = process.listen;
  options.metrics_listen = process.metrics_listen;
  options.cluster_secret = *secret;
  options.config = table.Effective();
  MetricsPage page;
  auto server = RouterServer::Start(options, &page, &log);
  if (!server.ok()) {
    log.Error(std::string(server.status().message()));
    return 1;
  }
  std::printf("ready grpc=%s http=%s metrics=%s\n", (*server)->address().c_str(),
              (*server)->http_address().c_str(), (*server)->metrics_address().c_str());
  std::fflush(stdout);
  const int signal = WaitForTermination();
  log.Info("going down", {{"signal", signal}});
  ArmShutdownWatchdog(20);
  (*server)->Stop();
  return 0;
}
