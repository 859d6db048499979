#include "router/router_server.h"

#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/inference/inference_service.h"
#include "common/inference/translate.h"
#include "common/metrics/http_server.h"
#include "common/rpc/rpc_server.h"
#include "common/status_macros.h"
#include "router/admin_service.h"

namespace quire {

class RouterServer::Impl {
 public:
  Impl(const RouterServerOptions& options, MetricsPage* page, const Logger* log)
      : options_(options), page_(page), log_(log), metrics_(page) {}
  ~Impl() { Stop(); }

  absl::Status Start() {
    // The router's links may report before the server is there: OnReady looks again below.
    router_ = std::make_unique<Router>(options_.router, page_, log_,
                                       [this](bool ready) { OnReady(ready); });
    front_.dispatcher = router_.get();
    front_.metrics = &metrics_;
    front_.log = log_;
    front_.salt = TenantSalt(options_.cluster_secret, kDefaultTenant);
    inference_ = MakeInferenceService(&front_);
    admin_context_ = {router_.get(), front_.salt, options_.config};
    admin_ = MakeAdminService(&admin_context_);
    ASSIGN_OR_RETURN(
        std::unique_ptr<RpcServer> server,
        RpcServer::Start({.address = options_.listen,
                          .services = {inference_.get(), admin_.get()},
                          .health_names = {"quire.v1.InferenceService", "quire.v1.AdminService"}}));
    const auto handler = ObservabilityHandler(page_, [this]() -> std::string {
      if (front_.draining.load()) return "draining";
      return router_->ready() ? "" : "no worker is connected";
    });
    if (!options_.http_listen.empty()) {
      ASSIGN_OR_RETURN(http_, HttpServer::Start(options_.http_listen, handler));
      http_address_ = http_->address();
    }
    if (!options_.metrics_listen.empty()) {
      ASSIGN_OR_RETURN(metrics_http_, HttpServer::Start(options_.metrics_listen, handler));
      metrics_address_ = metrics_http_->address();
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      server_ = std::move(server);
      server_->SetServing(ready_);
    }
    if (log_ != nullptr) {
      log_->Info("router serves", {{"address", server_->address()},
                                   {"http", http_address_},
                                   {"metrics", metrics_address_},
                                   {"workers", absl::StrJoin(options_.router.workers, ",")}});
    }
    return absl::OkStatus();
  }

  void OnReady(bool ready) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ready_ = ready;
    if (server_ != nullptr && !stopping_) server_->SetServing(ready);
    ready_changed_.notify_all();
  }

  bool WaitReady(int64_t timeout_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    return ready_changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                   [&] { return ready_; });
  }

  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (std::exchange(stopping_, true)) return;
      if (server_ != nullptr) server_->SetServing(false);
    }
    front_.draining.store(true);
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.drain_ms);
    while (router_->num_requests() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    router_->Stop();  // what still runs ends with UNAVAILABLE
    if (server_ != nullptr) server_->Shutdown(1000);
    http_.reset();
    metrics_http_.reset();
    if (log_ != nullptr) log_->Info("router stopped");
  }

  const RouterServerOptions options_;
  MetricsPage* const page_;
  const Logger* const log_;
  InferenceMetrics metrics_;
  InferenceFront front_;
  AdminContext admin_context_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<grpc::Service> inference_, admin_;
  std::unique_ptr<HttpServer> http_, metrics_http_;
  std::string http_address_, metrics_address_;

  std::mutex mutex_;  // guards the three below, and server_ while Start runs
  std::condition_variable ready_changed_;
  bool ready_ = false;
  bool stopping_ = false;
  std::unique_ptr<RpcServer> server_;
};

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(
    const RouterServerOptions& options, MetricsPage* page, const Logger* log) {
  auto impl = std::make_unique<Impl>(options, page, log);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<RouterServer>(new RouterServer(std::move(impl)));
}

RouterServer::RouterServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RouterServer::~RouterServer() = default;
int RouterServer::port() const { return impl_->server_->port(); }
const std::string& RouterServer::address() const { return impl_->server_->address(); }
const std::string& RouterServer::http_address() const { return impl_->http_address_; }
const std::string& RouterServer::metrics_address() const { return impl_->metrics_address_; }
Router& RouterServer::router() { return *impl_->router_; }
bool RouterServer::WaitReady(int64_t timeout_ms) { return impl_->WaitReady(timeout_ms); }
void RouterServer::Stop() { impl_->Stop(); }

void AddRouterFlags(FlagTable* table, RouterOptions* options, std::string* http_listen,
                    bool need_workers) {
  if (need_workers) {
    table->AddList("workers", &options->workers, "gRPC addresses of the workers, HOST:PORT each");
  }
  table->AddInt("max-queue", &options->max_queue, 1, 1 << 20,
                "requests in flight; more are refused with RESOURCE_EXHAUSTED");
  table->AddAddress("http-listen", http_listen, true,
                    "HTTP address: /metrics, /healthz, /readyz; empty = off");
  if (!need_workers) return;
  table->AddCheck([options]() -> absl::Status {
    std::vector<std::string> faults;
    if (options->workers.empty()) {
      faults.push_back("--workers is needed: HOST:PORT of at least one worker");
    }
    if (options->workers.size() > 64) {
      faults.push_back(
          absl::StrCat("--workers has ", options->workers.size(), " addresses, the limit is 64"));
    }
    std::set<std::string> seen;
    for (const std::string& worker : options->workers) {
      const absl::StatusOr<HostPort> address = ParseHostPort(worker);
      if (!address.ok() || address->port == 0) {
        faults.push_back(absl::StrCat("--workers has '", worker,
                                      "': must be HOST:PORT with a port from 1 to 65535"));
      } else if (!seen.insert(worker).second) {
        faults.push_back(absl::StrCat("--workers has ", worker, " twice"));
      }
    }
    if (faults.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
  });
}

}  // namespace quire
