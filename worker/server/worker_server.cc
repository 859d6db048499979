#include "worker/server/worker_server.h"

#include <grpcpp/impl/service_type.h>

#include <chrono>
#include <thread>
#include <utility>

#include "common/inference/inference_service.h"
#include "common/inference/translate.h"
#include "common/metrics/http_server.h"
#include "common/rpc/rpc_server.h"
#include "common/status_macros.h"
#include "worker/server/worker_service.h"

namespace quire {

class WorkerServer::Impl {
 public:
  Impl(const WorkerServerOptions& options, std::unique_ptr<Worker> worker, MetricsPage* page,
       const Logger* log)
      : options_(options),
        log_(log),
        page_(page),
        worker_(std::move(worker)),
        metrics_(page),
        dispatcher_(worker_.get(), options.listen) {}
  ~Impl() { Stop(); }

  absl::Status Start() {
    front_.dispatcher = &dispatcher_;
    front_.metrics = &metrics_;
    front_.log = log_;
    front_.salt = TenantSalt(options_.cluster_secret, kDefaultTenant);
    inference_ = MakeInferenceService(&front_);
    context_.worker = worker_.get();
    context_.log = log_;
    context_.on_drain = [this] { Drain(); };
    service_ = MakeWorkerService(&context_);
    ASSIGN_OR_RETURN(
        server_,
        RpcServer::Start({.address = options_.listen,
                          .services = {inference_.get(), service_.get()},
                          .health_names = {"quire.v1.InferenceService", "quire.v1.WorkerService"},
                          // A router's commands hold what clients sent it, 16 MiB at most each.
                          .max_receive_bytes = 32 << 20}));
    context_.address = server_->address();
    dispatcher_.set_name(server_->address());
    worker_->set_on_failed([this](const absl::Status& why) {
      if (log_ != nullptr) {
        log_->Error("the engine serves no more", {{"reason", std::string(why.message())}});
      }
      server_->SetServing(false);
    });
    if (!options_.metrics_listen.empty()) {
      ASSIGN_OR_RETURN(
          http_, HttpServer::Start(options_.metrics_listen, ObservabilityHandler(page_, [this] {
                                     return NotReadyReason();
                                   })));
      metrics_address_ = http_->address();
    }
    server_->SetServing(true);
    if (log_ != nullptr) {
      log_->Info("worker serves", {{"address", server_->address()}, {"metrics", metrics_address_}});
    }
    return absl::OkStatus();
  }

  void Drain() {
    front_.draining.store(true);
    worker_->Drain();
    server_->SetServing(false);
  }

  void Stop() {
    std::call_once(stop_once_, [this] {
      if (server_ == nullptr) return worker_->Stop();
      Drain();
      const auto deadline =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.drain_ms);
      while (worker_->num_requests() > 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      worker_->Stop();  // what still runs ends with UNAVAILABLE, and is delivered
      context_.streams.CloseAll();
      server_->Shutdown(1000);
      http_.reset();
      if (log_ != nullptr) log_->Info("worker stopped");
    });
  }

  std::string NotReadyReason() const {
    if (worker_->draining()) return "draining";
    const absl::Status health = worker_->health();
    return health.ok() ? "" : std::string(health.message());
  }

  const WorkerServerOptions options_;
  const Logger* const log_;
  MetricsPage* const page_;
  std::unique_ptr<Worker> worker_;
  InferenceMetrics metrics_;
  LocalDispatcher dispatcher_;
  InferenceFront front_;
  std::unique_ptr<grpc::Service> inference_;
  WorkerServiceContext context_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<HttpServer> http_;
  std::string metrics_address_;
  std::once_flag stop_once_;
};

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(
    const WorkerServerOptions& options, std::unique_ptr<Worker> worker, MetricsPage* page,
    const Logger* log) {
  auto impl = std::make_unique<Impl>(options, std::move(worker), page, log);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<WorkerServer>(new WorkerServer(std::move(impl)));
}

WorkerServer::WorkerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerServer::~WorkerServer() = default;
int WorkerServer::port() const { return impl_->server_->port(); }
const std::string& WorkerServer::address() const { return impl_->server_->address(); }
const std::string& WorkerServer::metrics_address() const { return impl_->metrics_address_; }
Worker& WorkerServer::worker() { return *impl_->worker_; }
void WorkerServer::Stop() { impl_->Stop(); }

}  // namespace quire
