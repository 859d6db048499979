// GenerateCall: one Generate from the client's request to its last event, without a transport.
//
// It translates, submits, joins deltas that pile up while the client is slow, gives credits back as
// the client takes them, and ends exactly once. The gRPC reactor and the in-process caller
// (`quire generate --model`) both drive it with TakeNext().
#ifndef QUIRE_COMMON_INFERENCE_GENERATE_CALL_H_
#define QUIRE_COMMON_INFERENCE_GENERATE_CALL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/inference/dispatcher.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"

namespace quire {

// Counted where a client's call ends. One a front.
class InferenceMetrics {
 public:
  explicit InferenceMetrics(MetricsPage* page);
  void CountOutcome(const absl::Status& status);
  void ObserveTtft(double seconds);
  void ObserveTpot(double seconds);

 private:
  MetricsPage* const page_;
  prometheus::Histogram& ttft_;
  prometheus::Histogram& tpot_;
};

// What all calls of one front share. Outlives them.
struct InferenceFront {
  Dispatcher* dispatcher = nullptr;
  InferenceMetrics* metrics = nullptr;  // may be null
  const Logger* log = nullptr;          // may be null
  std::string salt;                     // of the default tenant
  std::atomic<bool> draining{false};    // new requests are refused with UNAVAILABLE
};

class GenerateCall final : public RequestSink, public std::enable_shared_from_this<GenerateCall> {
 public:
  enum class Next {
    kMessage,  // *response is filled
    kNothing,  // `wake` will be called when there is more
    kEnd,      // *status is filled; nothing follows
  };

  // `wake` comes from any thread, also before Start() returns, with no lock held; it may come once
  // too often. `timeout_us` 0 = no deadline.
  static std::shared_ptr<GenerateCall> Create(InferenceFront* front, std::function<void()> wake);
  void Start(const v1::GenerateRequest& request, int64_t timeout_us);

  // Requires one caller at a time.
  Next TakeNext(v1::GenerateResponse* response, absl::Status* status);
  // The client has taken what TakeNext gave.
  void Delivered();
  // The client went away or its deadline passed: nothing follows but kEnd.
  void Cancel(bool deadline_exceeded);

  void OnStarted(v1::Started started) override;
  void OnDelta(v1::Delta delta) override;
  void OnEnd(absl::Status status, v1::Finished finished) override;

 private:
  GenerateCall(InferenceFront* front, std::function<void()> wake);
  void End(absl::Status status);
  absl::Status Submit(const v1::GenerateRequest& request, int64_t timeout_us);

  InferenceFront* const front_;
  const std::function<void()> wake_;
  const SteadyClock clock_;
  const TimeUs arrival_us_;

  std::mutex mutex_;  // guards all below; no call leaves this class under it
  uint64_t id_ = 0;   // 0: not submitted
  std::string request_id_;
  std::deque<v1::GenerateResponse> pending_;  // deltas are joined: bounded by the credits
  bool ended_ = false;                        // `final_status_` is final
  absl::Status final_status_;
  int64_t tokens_taken_ = 0;      // by TakeNext, not yet Delivered
  int64_t tokens_delivered_ = 0;  // since the last Consumed
  TimeUs first_token_us_ = 0;
};

// Runs one request to its end on the caller's thread. `on_event` returns false to cancel.
// Errors: as Generate's.
absl::Status RunGenerate(InferenceFront* front, const v1::GenerateRequest& request,
                         int64_t timeout_us,
                         const std::function<bool(const v1::GenerateResponse&)>& on_event);

}  // namespace quire

#endif  // QUIRE_COMMON_INFERENCE_GENERATE_CALL_H_
