// WorkerService over gRPC (callback API): what routers talk to.
#ifndef QUIRE_WORKER_SERVER_WORKER_SERVICE_H_
#define QUIRE_WORKER_SERVER_WORKER_SERVICE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "common/log/log.h"
#include "worker/worker.h"

namespace grpc {
class Service;
}

namespace quire {

class ServeReactor;

// The open Serve streams of a worker, so that a shutdown can end them: a stream ends by itself only
// when its router closes it. Thread-safe.
class ServeStreams {
 public:
  void Add(std::shared_ptr<ServeReactor> stream);
  void Remove(const std::shared_ptr<ServeReactor>& stream);
  // Ends all streams with UNAVAILABLE once what is pending was written; new ones end at once.
  void CloseAll();
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::shared_ptr<ServeReactor>> streams_;  // guarded by mutex_
  bool closed_ = false;                              // guarded by mutex_
};

struct WorkerServiceContext {
  Worker* worker = nullptr;
  const Logger* log = nullptr;  // may be null
  std::string address;          // for GetStats
  std::function<void()> on_drain;
  ServeStreams streams;
};

// `context` must outlive the service.
std::unique_ptr<grpc::Service> MakeWorkerService(WorkerServiceContext* context);

}  // namespace quire

#endif  // QUIRE_WORKER_SERVER_WORKER_SERVICE_H_
