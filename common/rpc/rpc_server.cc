#include "common/rpc/rpc_server.h"

#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"

namespace quire {
namespace {

void AppendVarint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void AppendBytes(std::string* out, int field, const std::string& bytes) {
  AppendVarint(out, static_cast<uint64_t>(field) << 3 | 2);
  AppendVarint(out, bytes.size());
  out->append(bytes);
}

// Health, reflection and channelz are switched on for all servers of a process, once.
void InitPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::channelz::experimental::InitChannelzService();
  });
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message(status.message());
  // google.rpc.Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  std::string details;
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    std::string any;
    AppendBytes(&any, 1, std::string(type_url));
    AppendBytes(&any, 2, std::string(payload));
    AppendBytes(&details, 3, any);
  });
  if (!details.empty()) {
    std::string head;
    AppendVarint(&head, 1 << 3);
    AppendVarint(&head, static_cast<uint64_t>(status.code()));
    AppendBytes(&head, 2, message);
    details = head + details;
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNKNOWN) {
    return absl::UnavailableError(status.error_message());
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

struct RpcServer::Impl {
  std::unique_ptr<grpc::Server> server;
  std::vector<std::string> health_names;
  std::once_flag shut_down;
};

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcServerOptions options) {
  InitPlugins();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.address, ": is another process there?"));
  }
  auto out = std::unique_ptr<RpcServer>(new RpcServer);
  out->impl_ = std::make_unique<Impl>();
  out->impl_->server = std::move(server);
  out->port_ = port;
  out->address_ = absl::StrCat(options.address.substr(0, options.address.rfind(':') + 1), port);
  out->impl_->health_names = std::move(options.health_names);
  out->SetServing(false);
  return out;
}

RpcServer::~RpcServer() { Shutdown(0); }

void RpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = impl_->server->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus("", serving);
  for (const std::string& name : impl_->health_names) health->SetServingStatus(name, serving);
}

void RpcServer::Shutdown(int64_t grace_ms) {
  std::call_once(impl_->shut_down, [&] {
    SetServing(false);
    impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms));
    impl_->server->Wait();
  });
}

namespace {
sigset_t TerminationSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}
}  // namespace

void BlockTerminationSignals() {
  const sigset_t set = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

int WaitForTermination() {
  const sigset_t set = TerminationSignals();
  int received = 0;
  while (sigwait(&set, &received) != 0) {
  }
  std::thread([set] {
    int again = 0;
    while (sigwait(&set, &again) != 0) {
    }
    _exit(128 + again);
  }).detach();
  return received;
}

void ArmShutdownWatchdog(int seconds) { alarm(static_cast<unsigned>(seconds)); }

}  // namespace quire
