#include "worker/server/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "common/inference/step_fan_out.h"
#include "common/rpc/grpc_status.h"
#include "quire/v1/worker.grpc.pb.h"

namespace quire {

// One router's token plane. Reads commands one after the other; writes one message at a time, and
// joins the steps that come meanwhile (bounded by the credits of the requests).
class ServeReactor final : public grpc::ServerBidiReactor<v1::Command, v1::StepOutput> {
 public:
  static ServeReactor* Start(WorkerServiceContext* context) {
    const auto reactor = std::shared_ptr<ServeReactor>(new ServeReactor(context));
    reactor->self_ = reactor;
    reactor->sink_ = std::make_shared<Sink>(reactor);
    context->streams.Add(reactor);
    reactor->StartRead(&reactor->command_);
    return reactor.get();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // the router closed the stream, or it broke
      End(absl::OkStatus());
      return;
    }
    Handle(command_);
    command_.Clear();
    bool ending;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending = ending_;
    }
    if (ending) {  // what was submitted just now may have missed the cancel of all
      CancelRequests();
      return;
    }
    StartRead(&command_);
  }
  void OnWriteDone(bool ok) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      writing_ = false;
      if (!ok) pending_.Clear();
    }
    Pump();
  }
  void OnCancel() override { End(absl::CancelledError("the router cancelled the stream")); }
  void OnDone() override {
    context_->streams.Remove(self_);
    self_.reset();
  }

  // After what is pending was written the stream ends with `status`; its requests are cancelled.
  void End(absl::Status status) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ending_) return;
      ending_ = true;
      final_ = ToGrpcStatus(status);
    }
    CancelRequests();
    Pump();
  }

 private:
  class Sink final : public StepSink {
   public:
    explicit Sink(std::weak_ptr<ServeReactor> reactor) : reactor_(std::move(reactor)) {}
    void OnStep(v1::StepOutput output) override {
      if (const auto alive = reactor_.lock()) alive->Add(std::move(output));
    }

   private:
    const std::weak_ptr<ServeReactor> reactor_;
  };

  explicit ServeReactor(WorkerServiceContext* context) : context_(context) {}

  void CancelRequests() {
    context_->worker->CancelAll(sink_.get(), absl::CancelledError("the router's stream ended"));
  }

  void Handle(const v1::Command& command) {
    for (const v1::Submit& submit : command.submits()) {
      const absl::Status status = context_->worker->Submit(sink_, submit);
      if (status.ok()) continue;
      v1::StepOutput refusal;
      v1::StepFinished* finished = refusal.add_finished();
      finished->set_id(submit.id());
      *finished->mutable_error() = StatusToProto(status);
      Add(std::move(refusal));
    }
    for (const v1::Credit& credit : command.credits()) {
      context_->worker->Consumed(sink_.get(), credit.id(), credit.tokens());
    }
    for (const v1::Cancel& cancel : command.cancels()) {
      context_->worker->Cancel(sink_.get(), cancel.id(),
                               cancel.deadline_exceeded()
                                   ? absl::DeadlineExceededError("the deadline passed")
                                   : absl::CancelledError("the client cancelled"));
    }
  }

  void Add(v1::StepOutput output) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (finished_) return;
      if (pending_.ByteSizeLong() == 0) {
        pending_ = std::move(output);
      } else {
        pending_.MergeFrom(output);
      }
    }
    Pump();
  }

  void Pump() {
    bool write = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (writing_ || finished_) return;
      if (pending_.started_size() + pending_.deltas_size() + pending_.finished_size() > 0) {
        out_.Clear();
        out_.Swap(&pending_);
        writing_ = write = true;
      } else if (ending_) {
        finished_ = true;
      } else {
        return;
      }
    }
    if (write) {
      StartWrite(&out_);
    } else {
      Finish(final_);
    }
  }

  WorkerServiceContext* const context_;
  std::shared_ptr<ServeReactor> self_;  // until OnDone
  std::shared_ptr<Sink> sink_;
  v1::Command command_;  // of the read under way
  v1::StepOutput out_;   // of the write under way
  std::mutex mutex_;     // guards all below
  v1::StepOutput pending_;
  grpc::Status final_;
  bool writing_ = false, ending_ = false, finished_ = false;
};

void ServeStreams::Add(std::shared_ptr<ServeReactor> stream) {
  bool closed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.insert(stream);
    closed = closed_;
  }
  if (closed) stream->End(absl::UnavailableError("this worker is going down"));
}

void ServeStreams::Remove(const std::shared_ptr<ServeReactor>& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
}

void ServeStreams::CloseAll() {
  std::vector<std::shared_ptr<ServeReactor>> streams;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) {
    stream->End(absl::UnavailableError("this worker is going down"));
  }
}

size_t ServeStreams::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.size();
}

namespace {

class WorkerServiceImpl final : public v1::WorkerService::CallbackService {
 public:
  explicit WorkerServiceImpl(WorkerServiceContext* context) : context_(context) {}

  grpc::ServerBidiReactor<v1::Command, v1::StepOutput>* Serve(
      grpc::CallbackServerContext*) override {
    return ServeReactor::Start(context_);
  }

  grpc::ServerUnaryReactor* GetTokenizer(grpc::CallbackServerContext* call,
                                         const v1::GetTokenizerRequest* request,
                                         v1::GetTokenizerResponse* response) override {
    *response = context_->worker->TokenizerFiles(request->known_digest());
    return Done(call, grpc::Status::OK);
  }

  grpc::ServerWriteReactor<v1::WorkerState>* WatchState(grpc::CallbackServerContext*,
                                                        const v1::WatchStateRequest*) override {
    class Refuse final : public grpc::ServerWriteReactor<v1::WorkerState> {
     public:
      Refuse() {
        Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                            "WatchState comes with the router's index, which is not in this "
                            "version"));
      }
      void OnDone() override { delete this; }
    };
    return new Refuse;
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call, const v1::DrainRequest*,
                                  v1::DrainResponse* response) override {
    if (context_->on_drain) context_->on_drain();
    response->set_requests_running(static_cast<uint32_t>(context_->worker->num_requests()));
    return Done(call, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* call,
                                     const v1::GetWorkerStatsRequest*,
                                     v1::WorkerStats* response) override {
    *response = context_->worker->StatsMessage();
    response->set_worker(context_->address);
    return Done(call, grpc::Status::OK);
  }

 private:
  static grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* call,
                                        const grpc::Status& status) {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  WorkerServiceContext* const context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(WorkerServiceContext* context) {
  return std::make_unique<WorkerServiceImpl>(context);
}

}  // namespace quire
