#include "common/inference/generate_call.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/inference/translate.h"
#include "common/status_macros.h"

namespace quire {
namespace {

// A joined delta has at most this many entries, so that a message stays far below 4 MiB (a token
// with 20 log-probabilities takes about 300 bytes).
constexpr int kMaxEntries = 4096;
constexpr int kEntriesPerLogprob = 16;
// Credits go back in lots, not one a token.
constexpr int64_t kCreditLot = 256;

int Entries(const v1::Delta& delta) {
  return delta.token_ids_size() + static_cast<int>(delta.text().size() / 16) +
         kEntriesPerLogprob * (delta.logprobs_size() + delta.prompt_logprobs_size());
}

void Join(v1::Delta* to, v1::Delta from) {
  to->mutable_text()->append(from.text());
  to->mutable_token_ids()->MergeFrom(from.token_ids());
  to->mutable_logprobs()->MergeFrom(from.logprobs());
  to->mutable_prompt_logprobs()->MergeFrom(from.prompt_logprobs());
}

const char* Outcome(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      return "refused";
    case absl::StatusCode::kResourceExhausted:
      return "exhausted";
    case absl::StatusCode::kUnavailable:
      return "unavailable";
    default:
      return "error";
  }
}

uint64_t RandomBits() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

InferenceMetrics::InferenceMetrics(MetricsPage* page)
    : page_(page),
      ttft_(page->AddHistogram("quire_ttft_seconds", "Time to the first token, as clients see it.",
                               LatencyBounds())),
      tpot_(page->AddHistogram("quire_tpot_seconds", "Time per later token of one answer.",
                               LatencyBounds())) {
  for (const char* outcome :
       {"ok", "cancelled", "deadline_exceeded", "refused", "exhausted", "unavailable", "error"}) {
    page_->AddCounter("quire_requests_total", "Requests of clients, by how they ended.",
                      {{"outcome", outcome}});
  }
}

void InferenceMetrics::CountOutcome(const absl::Status& status) {
  page_
      ->AddCounter("quire_requests_total", "Requests of clients, by how they ended.",
                   {{"outcome", Outcome(status)}})
      .Increment();
}
void InferenceMetrics::ObserveTtft(double seconds) { ttft_.Observe(seconds); }
void InferenceMetrics::ObserveTpot(double seconds) { tpot_.Observe(seconds); }

GenerateCall::GenerateCall(InferenceFront* front, std::function<void()> wake)
    : front_(front), wake_(std::move(wake)), arrival_us_(clock_.NowUs()) {}

std::shared_ptr<GenerateCall> GenerateCall::Create(InferenceFront* front,
                                                   std::function<void()> wake) {
  return std::shared_ptr<GenerateCall>(new GenerateCall(front, std::move(wake)));
}

void GenerateCall::Start(const v1::GenerateRequest& request, int64_t timeout_us) {
  absl::Status status = Submit(request, timeout_us);
  if (!status.ok()) End(std::move(status));
}

absl::Status GenerateCall::Submit(const v1::GenerateRequest& request, int64_t timeout_us) {
  if (front_->draining.load()) return absl::UnavailableError("this server is going down");
  ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model,
                   front_->dispatcher->FindModel(request.model()));
  ASSIGN_OR_RETURN(v1::Submit submit,
                   TranslateGenerate(request, *model, {front_->salt, RandomBits()}));
  if (submit.request_id().empty()) {
    submit.set_request_id(absl::StrFormat("req-%016x", RandomBits()));
  }
  submit.set_timeout_us(timeout_us);
  const uint64_t id = front_->dispatcher->NewRequestId();
  submit.set_id(id);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return absl::OkStatus();  // cancelled meanwhile
    id_ = id;
    request_id_ = submit.request_id();
  }
  RETURN_IF_ERROR(front_->dispatcher->Submit(std::move(submit), model, shared_from_this()));
  bool cancelled;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled = ended_;
  }
  // A Cancel() that ran before the dispatcher knew the id had no effect there.
  if (cancelled) front_->dispatcher->Cancel(id, false);
  return absl::OkStatus();
}

GenerateCall::Next GenerateCall::TakeNext(v1::GenerateResponse* response, absl::Status* status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!pending_.empty()) {
    *response = std::move(pending_.front());
    pending_.pop_front();
    tokens_taken_ = response->delta().token_ids_size();
    return Next::kMessage;
  }
  if (!ended_) return Next::kNothing;
  *status = final_status_;
  return Next::kEnd;
}

void GenerateCall::Delivered() {
  uint32_t lot = 0;
  uint64_t id;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tokens_delivered_ += std::exchange(tokens_taken_, 0);
    if (tokens_delivered_ >= kCreditLot && !ended_) {
      lot = static_cast<uint32_t>(std::exchange(tokens_delivered_, 0));
    }
    id = id_;
  }
  if (lot > 0) front_->dispatcher->Consumed(id, lot);
}

void GenerateCall::Cancel(bool deadline_exceeded) {
  uint64_t id;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    id = id_;
    pending_.clear();
  }
  if (id != 0) front_->dispatcher->Cancel(id, deadline_exceeded);
  End(deadline_exceeded ? absl::DeadlineExceededError("the deadline of the call passed")
                        : absl::CancelledError("the client cancelled the call"));
}

void GenerateCall::OnStarted(v1::Started started) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    started.set_request_id(request_id_);
    *pending_.emplace_back().mutable_started() = std::move(started);
  }
  wake_();
}

void GenerateCall::OnDelta(v1::Delta delta) {
  bool is_first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    if (first_token_us_ == 0 && delta.token_ids_size() > 0) {
      first_token_us_ = clock_.NowUs();
      is_first = true;
    }
    v1::Delta* last = nullptr;  // the youngest delta of this choice, if it may still grow
    for (auto it = pending_.rbegin(); it != pending_.rend() && it->has_delta(); ++it) {
      if (it->delta().index() == delta.index()) {
        last = it->mutable_delta();
        break;
      }
    }
    if (last != nullptr && Entries(*last) + Entries(delta) <= kMaxEntries) {
      Join(last, std::move(delta));
    } else {
      *pending_.emplace_back().mutable_delta() = std::move(delta);
    }
  }
  if (is_first && front_->metrics != nullptr) {
    front_->metrics->ObserveTtft(static_cast<double>(first_token_us_ - arrival_us_) * 1e-6);
  }
  wake_();
}

void GenerateCall::OnEnd(absl::Status status, v1::Finished finished) {
  const TimeUs now = clock_.NowUs();
  double tpot = -1;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    if (status.ok()) {
      const int choices = std::max(1, finished.choices_size());
      const int64_t later = int64_t{finished.usage().completion_tokens()} / choices - 1;
      if (later > 0 && first_token_us_ > 0) {
        tpot = static_cast<double>(now - first_token_us_) * 1e-6 / static_cast<double>(later);
      }
      *pending_.emplace_back().mutable_finished() = std::move(finished);
    }
  }
  if (tpot >= 0 && front_->metrics != nullptr) front_->metrics->ObserveTpot(tpot);
  End(std::move(status));
}

void GenerateCall::End(absl::Status status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
    final_status_ = status;
  }
  if (front_->metrics != nullptr) front_->metrics->CountOutcome(status);
  if (front_->log != nullptr && !status.ok()) {
    front_->log->Debug("request ended", {{"request_id", request_id_},
                                         {"status", absl::StatusCodeToString(status.code())},
                                         {"message", std::string(status.message())}});
  }
  wake_();
}

absl::Status RunGenerate(InferenceFront* front, const v1::GenerateRequest& request,
                         int64_t timeout_us,
                         const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  struct Signal {
    std::mutex mutex;
    std::condition_variable wakened;
    bool pending = false;
  };
  const auto signal = std::make_shared<Signal>();
  const std::shared_ptr<GenerateCall> call = GenerateCall::Create(front, [signal] {
    const std::lock_guard<std::mutex> lock(signal->mutex);
    signal->pending = true;
    signal->wakened.notify_one();
  });
  call->Start(request, timeout_us);
  v1::GenerateResponse response;
  absl::Status status;
  while (true) {
    switch (call->TakeNext(&response, &status)) {
      case GenerateCall::Next::kEnd:
        return status;
      case GenerateCall::Next::kMessage:
        call->Delivered();
        if (!on_event(response)) call->Cancel(false);
        break;
      case GenerateCall::Next::kNothing: {
        std::unique_lock<std::mutex> lock(signal->mutex);
        signal->wakened.wait(lock, [&] { return signal->pending; });
        signal->pending = false;
        break;
      }
    }
  }
}

}  // namespace quire
