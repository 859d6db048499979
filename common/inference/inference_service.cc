#include "common/inference/inference_service.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "common/inference/translate.h"
#include "common/inference/wire_check.h"
#include "common/rpc/grpc_status.h"
#include "common/status_macros.h"
#include "quire/v1/inference.grpc.pb.h"

namespace quire {
namespace {

using Base = v1::InferenceService;
using RawService = Base::WithRawCallbackMethod_Generate<
    Base::WithRawCallbackMethod_Embed<Base::WithRawCallbackMethod_Tokenize<
        Base::WithRawCallbackMethod_Detokenize<Base::WithRawCallbackMethod_RenderChat<
            Base::WithRawCallbackMethod_ListModels<Base::Service>>>>>>;

absl::Status ParseBuffer(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return absl::InternalError("an unreadable message buffer");
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return ParseWire(bytes, message);
}

grpc::ByteBuffer ToBuffer(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

// 0 = none.
int64_t TimeoutUs(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return 0;
  const int64_t left = std::chrono::duration_cast<std::chrono::microseconds>(
                           deadline - std::chrono::system_clock::now())
                           .count();
  return std::max<int64_t>(1, left);
}

// One Generate. Writes one message at a time; what piles up meanwhile waits, joined, in the call.
class GenerateReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  static GenerateReactor* Start(InferenceFront* front, grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* buffer) {
    const auto reactor = std::shared_ptr<GenerateReactor>(new GenerateReactor(context));
    reactor->self_ = reactor;  // until OnDone
    reactor->call_ = GenerateCall::Create(front, [weak = std::weak_ptr(reactor)] {
      if (const auto alive = weak.lock()) alive->Pump();
    });
    v1::GenerateRequest request;
    absl::Status parsed = ParseBuffer(*buffer, &request);
    if (parsed.ok()) {
      reactor->call_->Start(request, TimeoutUs(*context));
    } else {
      reactor->call_->OnEnd(std::move(parsed), {});
    }
    return reactor.get();
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      call_->Delivered();
    } else {
      call_->Cancel(DeadlinePassed());
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      writing_ = false;
    }
    Pump();
  }
  void OnCancel() override {
    call_->Cancel(DeadlinePassed());
    Pump();
  }
  void OnDone() override { self_.reset(); }

 private:
  explicit GenerateReactor(grpc::CallbackServerContext* context) : deadline_(context->deadline()) {}

  bool DeadlinePassed() const { return std::chrono::system_clock::now() >= deadline_; }

  // Starts the next write or the end, if neither is under way. From any thread.
  void Pump() {
    v1::GenerateResponse response;
    absl::Status status;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (writing_ || finished_) return;
      switch (call_->TakeNext(&response, &status)) {
        case GenerateCall::Next::kNothing:
          return;
        case GenerateCall::Next::kMessage:
          writing_ = true;
          break;
        case GenerateCall::Next::kEnd:
          finished_ = true;
          break;
      }
    }
    if (response.event_case() != v1::GenerateResponse::EVENT_NOT_SET) {
      buffer_ = ToBuffer(response);
      StartWrite(&buffer_);
    } else {
      Finish(ToGrpcStatus(status));
    }
  }

  const std::chrono::system_clock::time_point deadline_;
  std::shared_ptr<GenerateReactor> self_;
  std::shared_ptr<GenerateCall> call_;
  grpc::ByteBuffer buffer_;  // of the write under way
  std::mutex mutex_;         // guards the two below
  bool writing_ = false;
  bool finished_ = false;
};

class InferenceServiceImpl final : public RawService {
 public:
  explicit InferenceServiceImpl(InferenceFront* front) : front_(front) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override {
    return GenerateReactor::Start(front_, context, request);
  }

  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                  grpc::ByteBuffer*) override {
    return Done(context, absl::UnimplementedError(
                             "Embed comes with the semantic cache, which is not in this version"));
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override {
    return Answer<v1::TokenizeRequest, v1::TokenizeResponse>(
        context, *in, out,
        [this](const v1::TokenizeRequest& request, v1::TokenizeResponse* response) -> absl::Status {
          ASSIGN_OR_RETURN(const auto model, front_->dispatcher->FindModel(request.model()));
          RETURN_IF_ERROR(model->RequireTokenizer());
          const std::vector<int32_t> ids = model->tokenizer->Encode(
              request.text(),
              {.add_special_tokens = request.add_special_tokens(), .parse_special_tokens = true});
          response->mutable_token_ids()->Assign(ids.begin(), ids.end());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override {
    return Answer<v1::DetokenizeRequest, v1::DetokenizeResponse>(
        context, *in, out,
        [this](const v1::DetokenizeRequest& request,
               v1::DetokenizeResponse* response) -> absl::Status {
          ASSIGN_OR_RETURN(const auto model, front_->dispatcher->FindModel(request.model()));
          RETURN_IF_ERROR(model->RequireTokenizer());
          std::vector<int32_t> ids;
          for (const uint32_t id : request.token_ids()) {
            if (id <= INT32_MAX) ids.push_back(static_cast<int32_t>(id));
          }
          response->set_text(model->tokenizer->Decode(ids, request.skip_special_tokens()));
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override {
    return Answer<v1::RenderChatRequest, v1::RenderChatResponse>(
        context, *in, out,
        [this](const v1::RenderChatRequest& request,
               v1::RenderChatResponse* response) -> absl::Status {
          ASSIGN_OR_RETURN(const auto model, front_->dispatcher->FindModel(request.model()));
          const bool prompt =
              !request.has_add_generation_prompt() || request.add_generation_prompt();
          ASSIGN_OR_RETURN(RenderedChat chat,
                           RenderMessages(*model, request.messages(), request.tools_json(),
                                          &request.template_args(), prompt));
          response->set_text(std::move(chat.text));
          response->mutable_token_ids()->Assign(chat.token_ids.begin(), chat.token_ids.end());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* in, grpc::ByteBuffer* out) override {
    return Answer<v1::ListModelsRequest, v1::ListModelsResponse>(
        context, *in, out,
        [this](const v1::ListModelsRequest&, v1::ListModelsResponse* response) -> absl::Status {
          for (const auto& model : front_->dispatcher->Models()) {
            *response->add_models() = model->info;
          }
          return absl::OkStatus();
        });
  }

 private:
  static grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context,
                                        const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  template <class Request, class Response, class Handler>
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer& in, grpc::ByteBuffer* out,
                                          const Handler& handler) {
    Request request;
    Response response;
    absl::Status status = ParseBuffer(in, &request);
    if (status.ok()) status = handler(request, &response);
    if (status.ok()) *out = ToBuffer(response);
    return Done(context, status);
  }

  InferenceFront* const front_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(InferenceFront* front) {
  return std::make_unique<InferenceServiceImpl>(front);
}

}  // namespace quire
