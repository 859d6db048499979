#include "cachesvc/cachesvc_server.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/clock.h"
#include "common/metrics/http_server.h"
#include "common/rpc/rpc_server.h"
#include "common/status_macros.h"
#include "quire/v1/cache.grpc.pb.h"

namespace quire {
namespace {

const char kNotYet[] = "the cache service stores no pages in this version";

// A streaming call that is refused at once.
template <class Reactor>
class Refused final : public Reactor {
 public:
  Refused() { this->Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, kNotYet)); }
  void OnDone() override { delete this; }
};

class CacheServiceImpl final : public v1::CacheService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Handshake(grpc::CallbackServerContext* call,
                                      const v1::HandshakeRequest*,
                                      v1::HandshakeResponse*) override {
    return Refuse(call);
  }
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* call, const v1::LookupRequest*,
                                   v1::LookupResponse*) override {
    return Refuse(call);
  }
  grpc::ServerWriteReactor<v1::FetchResponse>* Fetch(grpc::CallbackServerContext*,
                                                     const v1::FetchRequest*) override {
    return new Refused<grpc::ServerWriteReactor<v1::FetchResponse>>;
  }
  grpc::ServerReadReactor<v1::StoreRequest>* Store(grpc::CallbackServerContext*,
                                                   v1::StoreResponse*) override {
    return new Refused<grpc::ServerReadReactor<v1::StoreRequest>>;
  }
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* call, const v1::PinRequest*,
                                v1::PinResponse*) override {
    return Refuse(call);
  }
  grpc::ServerUnaryReactor* Purge(grpc::CallbackServerContext* call, const v1::PurgeRequest*,
                                  v1::PurgeResponse*) override {
    return Refuse(call);
  }
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext*,
                                                     const v1::WatchRequest*) override {
    return new Refused<grpc::ServerWriteReactor<v1::WatchResponse>>;
  }
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* call,
                                     const v1::GetCacheStatsRequest*,
                                     v1::CacheStats* response) override {
    response->set_uptime_seconds(static_cast<double>(clock_.NowUs() - started_us_) * 1e-6);
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  static grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* call) {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, kNotYet));
    return reactor;
  }

  const SteadyClock clock_;
  const TimeUs started_us_ = clock_.NowUs();
};

}  // namespace

class CachesvcServer::Impl {
 public:
  absl::Status Start(const CachesvcServerOptions& options, MetricsPage* page, const Logger* log) {
    for (const char* name : {"pages", "bytes"}) {
      page->AddGauge(std::string("quire_cachesvc_") + name, "What the cache service holds.");
    }
    ASSIGN_OR_RETURN(server_, RpcServer::Start({.address = options.listen,
                                                .services = {&service_},
                                                .health_names = {"quire.v1.CacheService"}}));
    if (!options.metrics_listen.empty()) {
      ASSIGN_OR_RETURN(http_,
                       HttpServer::Start(options.metrics_listen,
                                         ObservabilityHandler(page, [] { return std::string(); })));
      metrics_address_ = http_->address();
    }
    server_->SetServing(true);
    if (log != nullptr) log->Info("cachesvc serves", {{"address", server_->address()}});
    return absl::OkStatus();
  }

  CacheServiceImpl service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<HttpServer> http_;
  std::string metrics_address_;
};

absl::StatusOr<std::unique_ptr<CachesvcServer>> CachesvcServer::Start(
    const CachesvcServerOptions& options, MetricsPage* page, const Logger* log) {
  auto impl = std::make_unique<Impl>();
  RETURN_IF_ERROR(impl->Start(options, page, log));
  return std::unique_ptr<CachesvcServer>(new CachesvcServer(std::move(impl)));
}

CachesvcServer::CachesvcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CachesvcServer::~CachesvcServer() { Stop(); }
int CachesvcServer::port() const { return impl_->server_->port(); }
const std::string& CachesvcServer::address() const { return impl_->server_->address(); }
const std::string& CachesvcServer::metrics_address() const { return impl_->metrics_address_; }
void CachesvcServer::Stop() { impl_->server_->Shutdown(1000); }

}  // namespace quire
