#include "common/inference/step_fan_out.h"

#include <google/protobuf/duration.pb.h>

#include <algorithm>
#include <utility>

namespace quire {
namespace {
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
}

absl::Status WithRetryAfter(absl::Status status, int64_t retry_after_ms) {
  if (status.ok() || retry_after_ms <= 0) return status;
  google::protobuf::Duration delay;
  delay.set_seconds(retry_after_ms / 1000);
  delay.set_nanos(static_cast<int32_t>(retry_after_ms % 1000) * 1'000'000);
  const std::string encoded = delay.SerializeAsString();
  // RetryInfo { Duration retry_delay = 1; }; a Duration takes 16 bytes at most.
  std::string info = {'\x0a', static_cast<char>(encoded.size())};
  info += encoded;
  status.SetPayload(kRetryInfoUrl, absl::Cord(info));
  return status;
}

int64_t RetryAfterMs(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  if (!payload) return 0;
  const std::string info(*payload);
  google::protobuf::Duration delay;
  if (info.size() < 2 || !delay.ParseFromString(info.substr(2))) return 0;
  return delay.seconds() * 1000 + delay.nanos() / 1'000'000;
}

absl::Status StatusFromProto(const v1::RequestError& error) {
  return WithRetryAfter(absl::Status(static_cast<absl::StatusCode>(error.code()), error.message()),
                        error.retry_after_ms());
}

v1::RequestError StatusToProto(const absl::Status& status) {
  v1::RequestError error;
  error.set_code(static_cast<int32_t>(status.code()));
  error.set_message(std::string(status.message()));
  error.set_retry_after_ms(RetryAfterMs(status));
  return error;
}

void StepFanOut::Add(uint64_t id, std::shared_ptr<RequestSink> sink) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sinks_[id] = std::move(sink);
}

std::shared_ptr<RequestSink> StepFanOut::Remove(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = sinks_.find(id);
  if (it == sinks_.end()) return nullptr;
  std::shared_ptr<RequestSink> sink = std::move(it->second);
  sinks_.erase(it);
  return sink;
}

std::shared_ptr<RequestSink> StepFanOut::Find(uint64_t id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = sinks_.find(id);
  return it == sinks_.end() ? nullptr : it->second;
}

std::vector<uint64_t> StepFanOut::Ids() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint64_t> ids;
  for (const auto& [id, sink] : sinks_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

size_t StepFanOut::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sinks_.size();
}

std::vector<uint64_t> StepFanOut::Deliver(v1::StepOutput output) {
  for (v1::StepStarted& started : *output.mutable_started()) {
    if (const auto sink = Find(started.id()))
      sink->OnStarted(std::move(*started.mutable_started()));
  }
  for (v1::StepDelta& delta : *output.mutable_deltas()) {
    if (const auto sink = Find(delta.id())) sink->OnDelta(std::move(*delta.mutable_delta()));
  }
  std::vector<uint64_t> ended;
  for (v1::StepFinished& finished : *output.mutable_finished()) {
    const std::shared_ptr<RequestSink> sink = Remove(finished.id());
    if (sink == nullptr) continue;
    ended.push_back(finished.id());
    if (finished.has_error()) {
      absl::Status status = StatusFromProto(finished.error());
      if (status.ok()) status = absl::InternalError("a request ended with an error without a code");
      sink->OnEnd(std::move(status), {});
    } else {
      sink->OnEnd(absl::OkStatus(), std::move(*finished.mutable_finished()));
    }
  }
  return ended;
}

}  // namespace quire
