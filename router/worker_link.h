// WorkerLink: the router's connection to one worker: fetches its tokenizer, keeps one Serve stream
// open, reconnects with backoff for as long as it lives.
//
// A connection has a generation: commands for an old one are refused, so that a request is never
// half on two streams. Events come one at a time, on gRPC's or the link's thread.
#ifndef QUIRE_ROUTER_WORKER_LINK_H_
#define QUIRE_ROUTER_WORKER_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/inference/served_model.h"
#include "common/log/log.h"
#include "quire/v1/worker.pb.h"

namespace quire {

class WorkerLink {
 public:
  struct Events {
    // A stream is open. `model` is what the worker serves.
    std::function<void(int64_t generation, std::shared_ptr<const ServedModel> model)> connected;
    std::function<void(int64_t generation, v1::StepOutput output)> step;
    // The stream of `generation` is gone; no step of it follows.
    std::function<void(int64_t generation, absl::Status why)> lost;
    // An attempt to connect failed.
    std::function<void(absl::Status why)> failed;
  };

  // Connects in the background. `log` may be null.
  WorkerLink(std::string address, Events events, const Logger* log);
  ~WorkerLink();  // Stop().
  WorkerLink(const WorkerLink&) = delete;

  const std::string& address() const { return address_; }

  // Queues the command; what piles up goes in one message. False if `generation` is over: nothing
  // was sent.
  bool Send(int64_t generation, v1::Command command);

  // Asks the worker to drain; `done` comes on a gRPC thread.
  void Drain(std::function<void(absl::Status, uint32_t requests_running)> done);

  // Closes the stream and joins the thread; `lost` comes before it returns. Idempotent.
  void Stop();

 private:
  class Impl;
  const std::string address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_ROUTER_WORKER_LINK_H_
