// StepFanOut: from step messages to the sinks of single requests. Thread-safe.
#ifndef QUIRE_COMMON_INFERENCE_STEP_FAN_OUT_H_
#define QUIRE_COMMON_INFERENCE_STEP_FAN_OUT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/inference/dispatcher.h"

namespace quire {

class StepFanOut {
 public:
  void Add(uint64_t id, std::shared_ptr<RequestSink> sink);
  // Null if unknown (ended or removed before).
  std::shared_ptr<RequestSink> Remove(uint64_t id);
  std::vector<uint64_t> Ids() const;
  size_t size() const;

  // Calls the sinks on this thread; ended requests are removed. Unknown ids are skipped: they were
  // cancelled. Returns the ids that ended. Requires one caller at a time.
  std::vector<uint64_t> Deliver(v1::StepOutput output);

 private:
  std::shared_ptr<RequestSink> Find(uint64_t id) const;

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<RequestSink>> sinks_;  // guarded by mutex_
};

absl::Status StatusFromProto(const v1::RequestError& error);
v1::RequestError StatusToProto(const absl::Status& status);

}  // namespace quire

#endif  // QUIRE_COMMON_INFERENCE_STEP_FAN_OUT_H_
