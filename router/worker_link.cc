#include "router/worker_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"
#include "quire/v1/worker.grpc.pb.h"

namespace quire {
namespace {

constexpr auto kMinBackoff = std::chrono::milliseconds(50);
constexpr auto kMaxBackoff = std::chrono::milliseconds(2000);
constexpr size_t kMaxJoinedBytes = 1 << 20;
constexpr auto kHelloDeadline = std::chrono::seconds(20);  // a tokenizer is megabytes

// One Serve stream. The link's thread starts it and waits for its end.
class ServeClient final : public grpc::ClientBidiReactor<v1::Command, v1::StepOutput> {
 public:
  ServeClient(v1::WorkerService::Stub* stub, std::function<void(v1::StepOutput)> on_step)
      : on_step_(std::move(on_step)) {
    stub->async()->Serve(&context_, this);
    AddHold();  // writes are started from other threads
    StartRead(&in_);
    StartCall();
  }

  bool Send(v1::Command command) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) return false;
      // What piles up is joined, but to messages far below the worker's limit.
      if (pending_.empty() || pending_.back().ByteSizeLong() > kMaxJoinedBytes) {
        pending_.push_back(std::move(command));
      } else {
        pending_.back().MergeFrom(command);
      }
      if (writing_) return true;
      writing_ = true;
      TakePendingLocked();
    }
    StartWrite(&out_);
    return true;
  }

  void Cancel() { context_.TryCancel(); }

  // Waits for the end; no reaction runs afterwards.
  grpc::Status Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_changed_.wait(lock, [&] { return done_; });
    return status_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close();
      return;
    }
    on_step_(std::move(in_));
    in_.Clear();
    StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!ok || closed_ || pending_.empty()) {
        writing_ = false;
        if (closed_) RemoveHoldLocked();
        if (ok) return;
      } else {
        TakePendingLocked();
      }
    }
    if (ok) {
      StartWrite(&out_);
    } else {
      Close();
    }
  }

  void OnDone(const grpc::Status& status) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    status_ = status;
    done_ = true;
    done_changed_.notify_all();
  }

 private:
  // No more writes; the hold goes when the last one has ended.
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    if (!writing_) RemoveHoldLocked();
  }
  void TakePendingLocked() {
    out_ = std::move(pending_.front());
    pending_.pop_front();
  }
  void RemoveHoldLocked() {
    if (std::exchange(held_, false)) RemoveHold();
  }

  const std::function<void(v1::StepOutput)> on_step_;
  grpc::ClientContext context_;
  v1::StepOutput in_;
  v1::Command out_;
  std::mutex mutex_;  // guards all below
  std::condition_variable done_changed_;
  std::deque<v1::Command> pending_;
  grpc::Status status_;
  bool writing_ = false, closed_ = false, held_ = true, done_ = false;
};

}  // namespace

class WorkerLink::Impl {
 public:
  Impl(const std::string& address, Events events, const Logger* log)
      : address_(address), events_(std::move(events)), log_(log) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // a worker is no stranger; tokenizers are large
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection a link
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::WorkerService::NewStub(channel_);
    thread_ = std::thread([this] { Run(); });
  }

  bool Send(int64_t generation, v1::Command command) {
    std::shared_ptr<ServeClient> stream;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (generation != generation_) return false;
      stream = stream_;
    }
    return stream != nullptr && stream->Send(std::move(command));
  }

  void Drain(std::function<void(absl::Status, uint32_t)> done) {
    struct Call {
      grpc::ClientContext context;
      v1::DrainRequest request;
      v1::DrainResponse response;
    };
    const auto call = std::make_shared<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    stub_->async()->Drain(&call->context, &call->request, &call->response,
                          [call, done = std::move(done)](const grpc::Status& status) {
                            done(FromGrpcStatus(status), call->response.requests_running());
                          });
  }

  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      if (stream_ != nullptr) stream_->Cancel();
      if (hello_ != nullptr) hello_->TryCancel();
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    auto backoff = kMinBackoff;
    while (true) {
      const absl::Status status = Serve(&backoff);
      if (log_ != nullptr && !status.ok()) {
        log_->Debug("worker not connected",
                    {{"worker", address_}, {"reason", std::string(status.message())}});
      }
      std::unique_lock<std::mutex> lock(mutex_);
      if (wake_.wait_for(lock, backoff, [&] { return stopping_; })) return;
      backoff = std::min(backoff * 2, kMaxBackoff);
    }
  }

  // Connects and serves until the stream is gone. Returns why.
  absl::Status Serve(std::chrono::milliseconds* backoff) {
    absl::Status hello = Hello();
    if (!hello.ok()) {
      events_.failed(hello);
      return hello;
    }
    int64_t generation;
    std::shared_ptr<ServeClient> stream;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::CancelledError("stopping");
      generation = ++generation_;
      stream =
          std::make_shared<ServeClient>(stub_.get(), [this, generation](v1::StepOutput output) {
            events_.step(generation, std::move(output));
          });
      stream_ = stream;
    }
    *backoff = kMinBackoff;
    events_.connected(generation, model_);
    absl::Status why = FromGrpcStatus(stream->Await());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++generation_;
      stream_.reset();
    }
    if (why.ok()) why = absl::UnavailableError("the worker closed the stream");
    events_.lost(generation, why);
    return why;
  }

  // Gets tokenizer and block-key inputs; keeps what is known if the worker has not changed.
  absl::Status Hello() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kHelloDeadline);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::CancelledError("stopping");
      hello_ = &context;
    }
    v1::GetTokenizerRequest request;
    request.set_known_digest(digest_);
    v1::GetTokenizerResponse response;
    const grpc::Status status = stub_->GetTokenizer(&context, request, &response);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      hello_ = nullptr;
    }
    if (!status.ok()) return FromGrpcStatus(status);
    if (model_ != nullptr && response.digest() == digest_ &&
        response.model().SerializeAsString() == model_->info.SerializeAsString()) {
      return absl::OkStatus();
    }
    if (response.digest() == digest_ && model_ != nullptr) {
      // Same files, other limits or layout: take both.
      auto changed = std::make_shared<ServedModel>(*model_);
      const std::string family = changed->info.chat_template();
      changed->info = response.model();
      changed->info.set_chat_template(family);
      changed->numerics = response.numerics();
      model_ = std::move(changed);
      return absl::OkStatus();
    }
    auto model = ServedModelFromWorker(response);
    if (!model.ok()) return model.status();
    model_ = *std::move(model);
    digest_ = response.digest();
    return absl::OkStatus();
  }

  const std::string address_;
  const Events events_;
  const Logger* const log_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;

  // The link's thread's.
  std::string digest_;
  std::shared_ptr<const ServedModel> model_;

  std::mutex mutex_;  // guards all below; no event is called under it
  std::condition_variable wake_;
  std::shared_ptr<ServeClient> stream_;
  grpc::ClientContext* hello_ = nullptr;  // of the call under way
  int64_t generation_ = 0;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses all above
};

WorkerLink::WorkerLink(std::string address, Events events, const Logger* log)
    : address_(std::move(address)),
      impl_(std::make_unique<Impl>(address_, std::move(events), log)) {}
WorkerLink::~WorkerLink() { Stop(); }
bool WorkerLink::Send(int64_t generation, v1::Command command) {
  return impl_->Send(generation, std::move(command));
}
void WorkerLink::Drain(std::function<void(absl::Status, uint32_t)> done) {
  impl_->Drain(std::move(done));
}
void WorkerLink::Stop() { impl_->Stop(); }

}  // namespace quire
