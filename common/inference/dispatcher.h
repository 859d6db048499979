// Dispatcher: where a front sends requests that are token ids by now. In a worker it is the engine
// right here, in a router the workers it knows.
#ifndef QUIRE_COMMON_INFERENCE_DISPATCHER_H_
#define QUIRE_COMMON_INFERENCE_DISPATCHER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/inference/served_model.h"
#include "quire/v1/worker.pb.h"

namespace quire {

// What comes back for one request: one OnStarted, any number of OnDelta, exactly one OnEnd (with
// `finished` if the status is OK); after a refusal OnEnd alone. Calls come from any thread, one at
// a time, and must not block.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnStarted(v1::Started started) = 0;
  virtual void OnDelta(v1::Delta delta) = 0;
  virtual void OnEnd(absl::Status status, v1::Finished finished) = 0;
};

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;

  // "" = the only one. Errors: NOT_FOUND (unknown), INVALID_ARGUMENT ("" with several),
  // UNAVAILABLE (none can be reached now).
  virtual absl::StatusOr<std::shared_ptr<const ServedModel>> FindModel(const std::string& name) = 0;
  virtual std::vector<std::shared_ptr<const ServedModel>> Models() = 0;

  virtual uint64_t NewRequestId() = 0;

  // `submit.id` comes from NewRequestId. Events may arrive before this returns. After an error no
  // event comes. Errors: RESOURCE_EXHAUSTED, UNAVAILABLE.
  virtual absl::Status Submit(v1::Submit submit, std::shared_ptr<const ServedModel> model,
                              std::shared_ptr<RequestSink> sink) = 0;
  // No event comes afterwards (one may be running). Unknown ids are ignored.
  virtual void Cancel(uint64_t id, bool deadline_exceeded) = 0;
  virtual void Consumed(uint64_t id, uint32_t num_tokens) = 0;
};

// Adds a google.rpc.RetryInfo to `status`: it travels in the error details.
absl::Status WithRetryAfter(absl::Status status, int64_t retry_after_ms);
int64_t RetryAfterMs(const absl::Status& status);  // 0 = none

}  // namespace quire

#endif  // QUIRE_COMMON_INFERENCE_DISPATCHER_H_
