// Router: the Dispatcher in front of a static list of workers. It places each request, follows it,
// tries another worker if one is lost before the first token, and ends it exactly once.
#ifndef QUIRE_ROUTER_ROUTER_H_
#define QUIRE_ROUTER_ROUTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/inference/dispatcher.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "quire/v1/admin.pb.h"

namespace quire {

struct RouterOptions {
  std::vector<std::string> workers;  // HOST:PORT each, at most 64
  int32_t max_queue = 4096;          // requests in flight; more are refused
};

class Router final : public Dispatcher {
 public:
  // Connects in the background. `on_ready` is called when the number of connected workers changes
  // between none and some. `log` and `page` must outlive the router; either may be null.
  Router(const RouterOptions& options, MetricsPage* page, const Logger* log,
         std::function<void(bool ready)> on_ready);
  ~Router() override;  // Stop().

  absl::StatusOr<std::shared_ptr<const ServedModel>> FindModel(const std::string& name) override;
  std::vector<std::shared_ptr<const ServedModel>> Models() override;
  uint64_t NewRequestId() override;
  absl::Status Submit(v1::Submit submit, std::shared_ptr<const ServedModel> model,
                      std::shared_ptr<RequestSink> sink) override;
  void Cancel(uint64_t id, bool deadline_exceeded) override;
  void Consumed(uint64_t id, uint32_t num_tokens) override;

  v1::ListWorkersResponse ListWorkers() const;
  v1::ExplainRouteResponse Explain(const v1::Submit& submit, const ServedModel& model) const;
  // Errors: NOT_FOUND. `done` comes on another thread.
  absl::Status DrainWorker(const std::string& address,
                           std::function<void(absl::Status, uint32_t)> done);

  int num_requests() const;
  bool ready() const;

  // Ends all requests with UNAVAILABLE and closes the links. Idempotent.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_ROUTER_ROUTER_H_
