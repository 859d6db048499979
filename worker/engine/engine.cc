#include "worker/engine/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace quire {
namespace {

struct CancelMessage {
  RequestId id;
  absl::Status status;
};
struct ConsumedMessage {
  RequestId id;
  int32_t num_tokens;
};
using Message = std::variant<EngineRequest, CancelMessage, ConsumedMessage>;

EngineOptions WithBackend(EngineOptions options, const Backend& backend) {
  options.num_blocks = backend.num_blocks();
  options.num_slots = backend.num_slots();
  return options;
}

}  // namespace

class Engine::Impl {
 public:
  Impl(EngineOptions options, Backend* backend, const Clock* clock, Sink sink)
      : options_(WithBackend(std::move(options), *backend)),
        backend_(backend),
        clock_(clock),
        sink_(std::move(sink)),
        core_(options_) {
    stats_ = core_.stats();
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() { Stop(); }

  absl::Status Submit(EngineRequest request) {
    if (request.arrival_us == 0) request.arrival_us = clock_->NowUs();
    {
      std::lock_guard lock(mutex_);
      if (!health_.ok()) return health_;
      if (stopping_) return absl::UnavailableError("the engine is stopped");
      if (draining_) return absl::UnavailableError("the engine is draining");
      // Cancel and Consumed always get in: there are only so many of them a request.
      if (num_queued_submits_ >= options_.max_queue) {
        return absl::ResourceExhaustedError(
            absl::StrCat(num_queued_submits_, " requests in the engine's queue, max_queue is ",
                         options_.max_queue));
      }
      ++num_queued_submits_;
      messages_.push_back(std::move(request));
    }
    wake_.notify_one();
    return absl::OkStatus();
  }

  void Send(Message message) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_ || !health_.ok()) return;  // everything ended already
      messages_.push_back(std::move(message));
    }
    wake_.notify_one();
  }

  void Drain() {
    {
      std::lock_guard lock(mutex_);
      draining_ = true;
    }
    wake_.notify_one();
  }

  bool drained() const {
    std::lock_guard lock(mutex_);
    return draining_ && idle_ && messages_.empty();
  }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  EngineStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  absl::Status health() const {
    std::lock_guard lock(mutex_);
    return health_;
  }

  int64_t stalled_us() const {
    const TimeUs since = busy_since_us_.load(std::memory_order_relaxed);
    return since == 0 ? 0 : std::max<int64_t>(clock_->NowUs() - since, 0);
  }

 private:
  // --- Engine thread ---

  void Run() {
    bool has_work = false;  // a step may be run at once
    while (true) {
      const bool stop = TakeMessages(has_work);
      EngineOutputs outputs;
      for (Message& message : taken_) Apply(std::move(message), &outputs);
      taken_.clear();
      if (stop) {
        core_.CancelAll(clock_->NowUs(), absl::UnavailableError("the engine is stopped"), &outputs);
        Emit(std::move(outputs));
        FinishFlights();
        Publish(/*progress=*/false);
        return;
      }
      absl::Status status = LaunchSteps(&outputs);
      Emit(std::move(outputs));
      has_work = core_.num_steps_in_flight() > 0;
      if (status.ok() && has_work) status = FinishStep();
      Publish(has_work);
      if (!status.ok()) {
        Fail(status);
        return;
      }
    }
  }

  // Waits for messages unless `has_work`. True if the engine has to stop.
  bool TakeMessages(bool has_work) {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return stopping_ || !messages_.empty(); };
    if (!has_work && !ready()) {
      busy_since_us_.store(0, std::memory_order_relaxed);
      idle_ = core_.idle();
      const TimeUs wakeup = core_.next_wakeup_us();
      if (wakeup == 0) {
        wake_.wait(lock, ready);
      } else if (const TimeUs now = clock_->NowUs(); wakeup > now) {
        // Looked at again at least once a minute, since clocks differ.
        const int64_t wait_us = std::min<int64_t>(wakeup - now, 60'000'000);
        wake_.wait_for(lock, std::chrono::microseconds(wait_us), ready);
      }
    }
    taken_.swap(messages_);
    num_queued_submits_ = 0;
    if (!taken_.empty() || has_work) idle_ = false;
    if (busy_since_us_.load(std::memory_order_relaxed) == 0 && !taken_.empty()) {
      busy_since_us_.store(clock_->NowUs(), std::memory_order_relaxed);
    }
    return stopping_;
  }

  void Apply(Message message, EngineOutputs* outputs) {
    const TimeUs now = clock_->NowUs();
    if (auto* request = std::get_if<EngineRequest>(&message)) {
      core_.Submit(now, std::move(*request), outputs);
    } else if (auto* cancel = std::get_if<CancelMessage>(&message)) {
      core_.Cancel(now, cancel->id, cancel->status, outputs);
    } else if (auto* consumed = std::get_if<ConsumedMessage>(&message)) {
      core_.Consumed(consumed->id, consumed->num_tokens);
    }
  }

  absl::Status LaunchSteps(EngineOutputs* outputs) {
    while (core_.num_steps_in_flight() < options_.max_steps_in_flight) {
      StepPlan& plan = plans_[next_plan_ % plans_.size()];
      if (!core_.MakePlan(clock_->NowUs(), &plan, outputs)) return absl::OkStatus();
      ++next_plan_;
      RETURN_IF_ERROR(backend_->Launch(plan));
      ++num_launched_;
    }
    return absl::OkStatus();
  }

  absl::Status FinishStep() {
    ASSIGN_OR_RETURN(const StepResult result, backend_->Finish());
    --num_launched_;
    EngineOutputs outputs;
    core_.Complete(clock_->NowUs(), result, &outputs);
    Emit(std::move(outputs));
    return absl::OkStatus();
  }

  void FinishFlights() {  // the backend is done with our plans when this returns
    while (num_launched_ > 0) {
      if (!FinishStep().ok()) return;
    }
  }

  void Fail(const absl::Status& status) {
    const absl::Status reason =
        absl::UnavailableError(absl::StrCat("the backend failed: ", status.message()));
    EngineOutputs outputs;
    {
      std::lock_guard lock(mutex_);
      health_ = reason;
      taken_.swap(messages_);
    }
    for (Message& message : taken_) Apply(std::move(message), &outputs);
    taken_.clear();
    core_.CancelAll(clock_->NowUs(), reason, &outputs);
    Emit(std::move(outputs));
    Publish(/*progress=*/false);
    std::lock_guard lock(mutex_);
    idle_ = true;
    busy_since_us_.store(0, std::memory_order_relaxed);
  }

  void Emit(EngineOutputs outputs) {
    if (!outputs.empty()) sink_(std::move(outputs));
  }

  void Publish(bool progress) {
    if (progress) busy_since_us_.store(clock_->NowUs(), std::memory_order_relaxed);
    const EngineStats stats = core_.stats();
    std::lock_guard lock(mutex_);
    stats_ = stats;
  }

  // Constant.
  const EngineOptions options_;
  Backend* const backend_;
  const Clock* const clock_;
  const Sink sink_;

  // Engine thread.
  EngineCore core_;
  std::array<StepPlan, 2> plans_;
  size_t next_plan_ = 0;
  int num_launched_ = 0;
  std::vector<Message> taken_;

  std::atomic<TimeUs> busy_since_us_{0};  // last progress while there is work; 0 = idle

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::vector<Message> messages_;
  int32_t num_queued_submits_ = 0;
  bool stopping_ = false, draining_ = false;
  bool idle_ = true;
  EngineStats stats_;
  absl::Status health_;

  std::mutex join_mutex_;  // before mutex_: never held together
  std::thread thread_;
};

Engine::Engine(EngineOptions options, Backend* backend, const Clock* clock, Sink sink)
    : impl_(std::make_unique<Impl>(std::move(options), backend, clock, std::move(sink))) {}
Engine::~Engine() = default;

absl::Status Engine::Submit(EngineRequest request) { return impl_->Submit(std::move(request)); }
void Engine::Cancel(RequestId id, absl::Status status) {
  impl_->Send(CancelMessage{id, std::move(status)});
}
void Engine::Consumed(RequestId id, int32_t num_tokens) {
  impl_->Send(ConsumedMessage{id, num_tokens});
}
void Engine::Drain() { impl_->Drain(); }
bool Engine::drained() const { return impl_->drained(); }
void Engine::Stop() { impl_->Stop(); }
EngineStats Engine::stats() const { return impl_->stats(); }
absl::Status Engine::health() const { return impl_->health(); }
int64_t Engine::stalled_us() const { return impl_->stalled_us(); }

}  // namespace quire
