#include "cli/client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/v1/inference.grpc.pb.h"
#include "quire/v1/worker.grpc.pb.h"

namespace quire::cli {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void SetDeadline(grpc::ClientContext* context, double seconds) {
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

}  // namespace

struct Cancellation::State {
  std::mutex mutex;
  grpc::ClientContext* context = nullptr;  // of the call that runs; guarded by mutex
  bool cancelled = false;                  // guarded by mutex
};

Cancellation::Cancellation() : state_(std::make_unique<State>()) {}
Cancellation::~Cancellation() = default;

void Cancellation::Cancel() {
  std::lock_guard lock(state_->mutex);
  state_->cancelled = true;
  if (state_->context != nullptr) state_->context->TryCancel();
}

void Cancellation::Reset() {
  std::lock_guard lock(state_->mutex);
  state_->cancelled = false;
}

struct Client::Stubs {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<v1::WorkerService::Stub> worker;
};

Client::Client(const std::string& target) : target_(target), stubs_(std::make_unique<Stubs>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  stubs_->channel =
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  stubs_->inference = v1::InferenceService::NewStub(stubs_->channel);
  stubs_->worker = v1::WorkerService::NewStub(stubs_->channel);
}

Client::~Client() = default;

absl::Status Client::WaitReady(double timeout_seconds) {
  const auto deadline = std::chrono::system_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  if (!stubs_->channel->WaitForConnected(deadline)) {
    return absl::UnavailableError(
        absl::StrCat("no server answers at ", target_, " (start one with `quire up --model M`)"));
  }
  return absl::OkStatus();
}

absl::Status Client::Generate(const v1::GenerateRequest& request, Cancellation* cancellation,
                              absl::FunctionRef<void(const v1::GenerateResponse&)> on_event) {
  grpc::ClientContext context;
  if (cancellation != nullptr) {
    std::lock_guard lock(cancellation->state_->mutex);
    if (cancellation->state_->cancelled) return absl::CancelledError("cancelled");
    cancellation->state_->context = &context;
  }
  auto stream = stubs_->inference->Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) on_event(response);
  const grpc::Status status = stream->Finish();
  if (cancellation != nullptr) {
    std::lock_guard lock(cancellation->state_->mutex);
    cancellation->state_->context = nullptr;
  }
  return FromGrpc(status);
}

absl::StatusOr<v1::ListModelsResponse> Client::ListModels() {
  grpc::ClientContext context;
  SetDeadline(&context, 10);
  v1::ListModelsResponse response;
  const grpc::Status status = stubs_->inference->ListModels(&context, {}, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

absl::StatusOr<v1::WorkerStats> Client::GetWorkerStats() {
  grpc::ClientContext context;
  SetDeadline(&context, 10);
  v1::WorkerStats response;
  const grpc::Status status = stubs_->worker->GetStats(&context, {}, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

}  // namespace quire::cli
