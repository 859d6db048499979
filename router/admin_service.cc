#include "router/admin_service.h"

#include <grpcpp/grpcpp.h>

#include "common/inference/translate.h"
#include "common/rpc/grpc_status.h"
#include "common/status_macros.h"
#include "quire/v1/admin.grpc.pb.h"

namespace quire {
namespace {

grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

class AdminServiceImpl final : public v1::AdminService::CallbackService {
 public:
  explicit AdminServiceImpl(const AdminContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* call,
                                        const v1::ListWorkersRequest*,
                                        v1::ListWorkersResponse* response) override {
    *response = context_->router->ListWorkers();
    return Done(call, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ExplainRoute(grpc::CallbackServerContext* call,
                                         const v1::ExplainRouteRequest* request,
                                         v1::ExplainRouteResponse* response) override {
    return Done(call, Explain(request->request(), response));
  }

  grpc::ServerUnaryReactor* PurgeSemanticCache(grpc::CallbackServerContext* call,
                                               const v1::PurgeSemanticCacheRequest*,
                                               v1::PurgeSemanticCacheResponse*) override {
    return Done(call, absl::UnimplementedError("the semantic cache is not in this version"));
  }

  grpc::ServerUnaryReactor* PurgeTenant(grpc::CallbackServerContext* call,
                                        const v1::PurgeTenantRequest*,
                                        v1::PurgeTenantResponse*) override {
    return Done(call, absl::UnimplementedError("tenants are not in this version"));
  }

  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* call,
                                      const v1::GetConfigRequest*,
                                      v1::GetConfigResponse* response) override {
    for (const EffectiveValue& value : context_->config) {
      v1::ConfigValue* out = response->add_values();
      out->set_name(value.name);
      out->set_value(value.value);
      out->set_source(FlagSourceName(value.source));
    }
    return Done(call, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* DrainWorker(grpc::CallbackServerContext* call,
                                        const v1::DrainWorkerRequest* request,
                                        v1::DrainWorkerResponse* response) override {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    const absl::Status status = context_->router->DrainWorker(
        request->address(), [reactor, response](absl::Status drained, uint32_t running) {
          response->set_requests_running(running);
          reactor->Finish(ToGrpcStatus(drained));
        });
    if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

 private:
  absl::Status Explain(const v1::GenerateRequest& request, v1::ExplainRouteResponse* response) {
    ASSIGN_OR_RETURN(const auto model, context_->router->FindModel(request.model()));
    ASSIGN_OR_RETURN(const v1::Submit submit,
                     TranslateGenerate(request, *model, {context_->salt, 0}));
    *response = context_->router->Explain(submit, *model);
    return absl::OkStatus();
  }

  const AdminContext* const context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const AdminContext* context) {
  return std::make_unique<AdminServiceImpl>(context);
}

}  // namespace quire
