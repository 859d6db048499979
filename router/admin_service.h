// AdminService over gRPC: what the router knows and would do.
#ifndef QUIRE_ROUTER_ADMIN_SERVICE_H_
#define QUIRE_ROUTER_ADMIN_SERVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "common/config/flags.h"
#include "router/router.h"

namespace grpc {
class Service;
}

namespace quire {

struct AdminContext {
  Router* router = nullptr;
  std::string salt;
  std::vector<EffectiveValue> config;
};

// `context` must outlive the service.
std::unique_ptr<grpc::Service> MakeAdminService(const AdminContext* context);

}  // namespace quire

#endif  // QUIRE_ROUTER_ADMIN_SERVICE_H_
