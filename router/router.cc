#include "router/router.h"

#include <prometheus/histogram.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/block_key.h"
#include "common/clock.h"
#include "common/inference/step_fan_out.h"
#include "common/status_macros.h"
#include "router/placement.h"
#include "router/prefix_history.h"
#include "router/worker_link.h"

namespace quire {
namespace {

// How often one request is sent to a worker before the client is told.
constexpr int kMaxAttempts = 3;
// A worker that refused a request as UNAVAILABLE (it drains or stops) gets none for so long.
constexpr int64_t kRefusedForUs = 1'000'000;
constexpr int64_t kQueueRetryMs = 200;

std::vector<BlockKey> KeysOf(const v1::Submit& submit, const ServedModel& model) {
  const BlockKey root = BlockKeyRoot{.model_digest = model.info.digest(),
                                     .kv_layout = model.info.kv_layout(),
                                     .numerics = model.numerics,
                                     .adapter = "",
                                     .salt = submit.salt()}
                            .Compute();
  const std::vector<int32_t> tokens(submit.prompt_ids().begin(), submit.prompt_ids().end());
  const int32_t block = static_cast<int32_t>(model.info.block_size());
  if (block <= 0) return {};
  return ChainBlockKeys(root, "", tokens, block);
}

}  // namespace

class Router::Impl {
 public:
  struct Request {
    v1::Submit submit;  // kept until the first token, for another try
    std::shared_ptr<const ServedModel> model;
    std::shared_ptr<RequestSink> sink;
    std::vector<BlockKey> keys;
    int worker = -1;
    int64_t generation = 0;
    int attempts = 0;
    int64_t predicted_cached = 0;
    int64_t charged_tokens = 0;  // in the worker's uncached_tokens_in_flight
    std::string reason;
    bool started_sent = false;
    bool token_sent = false;
  };
  struct WorkerState {
    std::unique_ptr<WorkerLink> link;
    bool connected = false;
    bool draining = false;  // by DrainWorker; until it connects anew
    int64_t generation = 0;
    std::shared_ptr<const ServedModel> model;  // as of the last connection
    std::string last_error = "not yet connected";
    TimeUs refused_until_us = 0;
    int64_t requests_in_flight = 0;
    int64_t uncached_tokens_in_flight = 0;
  };
  // A submit that was decided under the lock and is sent outside of it.
  struct Outgoing {
    uint64_t id = 0;
    int worker = -1;
    int64_t generation = 0;
    int attempt = 0;
    v1::Submit submit;
  };

  Impl(const RouterOptions& options, MetricsPage* page, const Logger* log,
       std::function<void(bool)> on_ready)
      : options_(options), log_(log), on_ready_(std::move(on_ready)) {
    if (page != nullptr) {
      decision_seconds_ =
          &page->AddHistogram("quire_router_decision_seconds",
                              "Block keys, matching and choice of a worker.", ShortLatencyBounds());
      predicted_minus_actual_ = &page->AddHistogram(
          "quire_router_predicted_minus_actual_tokens",
          "Cached prompt tokens as predicted, minus those that the worker found.",
          {-4096, -1024, -256, -64, -16, -1, 0, 16, 64, 256, 1024, 4096});
      reader_ = page->AddReader([this](std::vector<MetricSample>* out) { Collect(out); });
    }
    workers_.resize(options_.workers.size());
    for (size_t i = 0; i < workers_.size(); ++i) {
      const int w = static_cast<int>(i);
      WorkerLink::Events events;
      events.connected = [this, w](int64_t generation, std::shared_ptr<const ServedModel> model) {
        OnConnected(w, generation, std::move(model));
      };
      events.step = [this, w](int64_t generation, v1::StepOutput output) {
        OnStep(w, generation, std::move(output));
      };
      events.lost = [this, w](int64_t generation, absl::Status why) {
        OnLost(w, generation, std::move(why));
      };
      events.failed = [this, w](absl::Status why) {
        const std::lock_guard<std::mutex> lock(mutex_);
        At(w).last_error = std::string(why.message());
      };
      auto link = std::make_unique<WorkerLink>(options_.workers[i], std::move(events), log_);
      const std::lock_guard<std::mutex> lock(mutex_);
      workers_[i].link = std::move(link);
    }
  }

  WorkerState& At(int w) { return workers_[static_cast<size_t>(w)]; }
  const WorkerState& At(int w) const { return workers_[static_cast<size_t>(w)]; }

  void Collect(std::vector<MetricSample>* out) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < workers_.size(); ++i) {
      const MetricLabels labels = {{"worker", options_.workers[i]}};
      out->push_back({MetricSample::Kind::kGauge, "quire_router_worker_connected",
                      "1 if the worker's stream is open.", labels,
                      workers_[i].connected ? 1.0 : 0.0});
      out->push_back({MetricSample::Kind::kGauge, "quire_router_requests_in_flight",
                      "Requests of this router at the worker.", labels,
                      static_cast<double>(workers_[i].requests_in_flight)});
    }
  }

  std::vector<PlacementCandidate> CandidatesLocked(std::span<const BlockKey> keys,
                                                   const ServedModel& model) const {
    const std::vector<int32_t> matched = history_.Match(keys, static_cast<int>(workers_.size()));
    const TimeUs now = clock_.NowUs();
    std::vector<PlacementCandidate> out(workers_.size());
    for (size_t i = 0; i < workers_.size(); ++i) {
      const WorkerState& w = workers_[i];
      PlacementCandidate& c = out[i];
      c.cached_tokens = int64_t{matched[i]} * model.info.block_size();
      c.uncached_tokens_in_flight = w.uncached_tokens_in_flight;
      c.requests_in_flight = w.requests_in_flight;
      if (!w.connected || w.link == nullptr) {
        c.refused = "not connected: " + w.last_error;
      } else if (w.draining) {
        c.refused = "draining";
      } else if (w.model->info.digest() != model.info.digest()) {
        c.refused = "serves another model";
      } else if (w.refused_until_us > now) {
        c.refused = "refused a request just now";
      }
    }
    return out;
  }

  // Chooses a worker for the request and charges it. Error: UNAVAILABLE.
  absl::StatusOr<Outgoing> PlaceLocked(uint64_t id, Request* request) {
    const std::vector<PlacementCandidate> candidates =
        CandidatesLocked(request->keys, *request->model);
    const int64_t prompt = request->submit.prompt_ids_size();
    const PlacementChoice choice = ChoosePlacement(candidates, prompt, round_robin_++);
    round_robin_ %= std::max<int>(1, static_cast<int>(workers_.size()));
    if (choice.worker < 0) {
      std::string reasons;
      for (size_t i = 0; i < candidates.size(); ++i) {
        absl::StrAppend(&reasons, i == 0 ? "" : "; ", options_.workers[i], ": ",
                        candidates[i].refused);
      }
      return absl::UnavailableError(
          absl::StrCat("no worker can take the request now (", reasons, ")"));
    }
    WorkerState& w = At(choice.worker);
    request->worker = choice.worker;
    request->generation = w.generation;
    request->reason = choice.reason;
    // A worker computes the last token always, so a hit is never the whole prompt.
    request->predicted_cached =
        std::min(candidates[static_cast<size_t>(choice.worker)].cached_tokens, prompt - 1);
    if (!request->submit.read_prefix_cache()) request->predicted_cached = 0;
    request->charged_tokens = prompt - request->predicted_cached;
    ++request->attempts;
    ++w.requests_in_flight;
    w.uncached_tokens_in_flight += request->charged_tokens;
    if (request->submit.store_prefix()) history_.Record(request->keys, choice.worker);
    return Outgoing{id, choice.worker, w.generation, request->attempts, request->submit};
  }

  void ReleaseLocked(Request* request) {
    if (request->worker < 0) return;
    WorkerState& w = At(request->worker);
    --w.requests_in_flight;
    w.uncached_tokens_in_flight -= std::exchange(request->charged_tokens, 0);
    request->worker = -1;
  }

  absl::Status Submit(v1::Submit submit, std::shared_ptr<const ServedModel> model,
                      std::shared_ptr<RequestSink> sink) {
    const TimeUs begin = clock_.NowUs();
    Request request;
    request.keys = KeysOf(submit, *model);
    const uint64_t id = submit.id();
    request.submit = std::move(submit);
    request.model = std::move(model);
    request.sink = std::move(sink);
    absl::StatusOr<Outgoing> outgoing = absl::UnavailableError("this router is going down");
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return outgoing.status();
      if (static_cast<int64_t>(requests_.size()) >= options_.max_queue) {
        return WithRetryAfter(
            absl::ResourceExhaustedError(absl::StrCat(
                requests_.size(), " requests are in flight, --max-queue is ", options_.max_queue)),
            kQueueRetryMs);
      }
      outgoing = PlaceLocked(id, &request);
      if (!outgoing.ok()) return outgoing.status();
      requests_.emplace(id, std::move(request));
    }
    if (decision_seconds_ != nullptr) {
      decision_seconds_->Observe(static_cast<double>(clock_.NowUs() - begin) * 1e-6);
    }
    Send(*std::move(outgoing));
    return absl::OkStatus();
  }

  void Send(Outgoing outgoing) {
    v1::Command command;
    *command.add_submits() = std::move(outgoing.submit);
    WorkerLink* link = LinkOf(outgoing.worker);
    if (!link->Send(outgoing.generation, std::move(command))) {
      // The stream broke in between. Whoever sees this first tries again.
      Retry(outgoing.id, outgoing.attempt, absl::UnavailableError("the worker's stream broke"));
      return;
    }
    bool gone;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      gone = requests_.find(outgoing.id) == requests_.end();
    }
    if (!gone) return;
    // Cancelled between the choice and the send: that cancel came before the submit, if at all.
    v1::Command cancel;
    cancel.add_cancels()->set_id(outgoing.id);
    link->Send(outgoing.generation, std::move(cancel));
  }

  WorkerLink* LinkOf(int worker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return At(worker).link.get();
  }

  // Another worker, if no token has gone out and there are attempts left; else the client is told.
  void Retry(uint64_t id, int attempt, absl::Status why) {
    std::shared_ptr<RequestSink> sink;
    absl::StatusOr<Outgoing> outgoing = why;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto it = requests_.find(id);
      if (it == requests_.end() || it->second.attempts != attempt) return;
      Request& request = it->second;
      ReleaseLocked(&request);
      if (!request.token_sent && request.attempts < kMaxAttempts && !stopping_) {
        outgoing = PlaceLocked(id, &request);
      }
      if (!outgoing.ok()) {
        sink = std::move(request.sink);
        requests_.erase(it);
      }
    }
    if (outgoing.ok()) {
      if (log_ != nullptr) {
        log_->Info("request goes to another worker",
                   {{"request_id", outgoing->submit.request_id()},
                    {"worker", options_.workers[static_cast<size_t>(outgoing->worker)]},
                    {"reason", std::string(why.message())}});
      }
      Send(*std::move(outgoing));
    } else {
      sink->OnEnd(outgoing.status(), {});
    }
  }

  void OnConnected(int w, int64_t generation, std::shared_ptr<const ServedModel> model) {
    bool first;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      WorkerState& worker = At(w);
      first = num_connected_++ == 0;
      worker.connected = true;
      worker.draining = false;
      worker.generation = generation;
      worker.model = model;
      worker.last_error.clear();
      worker.refused_until_us = 0;
      // A worker that comes back is most likely a new process with an empty cache.
      history_.ForgetWorker(w);
    }
    if (log_ != nullptr) {
      log_->Info("worker connected", {{"worker", options_.workers[static_cast<size_t>(w)]},
                                      {"model", model->info.name()}});
    }
    if (first && on_ready_) on_ready_(true);
  }

  void OnLost(int w, int64_t generation, absl::Status why) {
    std::vector<std::pair<uint64_t, int>> orphans;  // id, attempt
    bool last;
    bool stopping;  // then it was this router that cancelled the stream
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping = stopping_;
      WorkerState& worker = At(w);
      worker.connected = false;
      worker.last_error = std::string(why.message());
      last = --num_connected_ == 0;
      for (const auto& [id, request] : requests_) {
        if (request.worker == w && request.generation == generation) {
          orphans.emplace_back(id, request.attempts);
        }
      }
    }
    if (log_ != nullptr && !stopping) {
      log_->Warning("worker lost", {{"worker", options_.workers[static_cast<size_t>(w)]},
                                    {"requests", orphans.size()},
                                    {"reason", std::string(why.message())}});
    }
    if (last && on_ready_) on_ready_(false);
    std::sort(orphans.begin(), orphans.end());
    const absl::Status lost =
        absl::UnavailableError(absl::StrCat("worker ", options_.workers[static_cast<size_t>(w)],
                                            " was lost: ", std::string(why.message())));
    for (const auto& [id, attempt] : orphans) Retry(id, attempt, lost);
  }

  void OnStep(int w, int64_t generation, v1::StepOutput output) {
    for (v1::StepStarted& started : *output.mutable_started()) {
      OnStarted(w, generation, started.id(), std::move(*started.mutable_started()));
    }
    for (v1::StepDelta& delta : *output.mutable_deltas()) {
      if (const auto sink = TokenSink(w, generation, delta)) {
        sink->OnDelta(std::move(*delta.mutable_delta()));
      }
    }
    for (v1::StepFinished& finished : *output.mutable_finished()) {
      OnFinished(w, generation, &finished);
    }
  }

  Request* FindLocked(int w, int64_t generation, uint64_t id) {
    const auto it = requests_.find(id);
    const bool found =
        it != requests_.end() && it->second.worker == w && it->second.generation == generation;
    return found ? &it->second : nullptr;
  }

  void OnStarted(int w, int64_t generation, uint64_t id, v1::Started started) {
    std::shared_ptr<RequestSink> sink;
    double difference;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Request* request = FindLocked(w, generation, id);
      if (request == nullptr || request->started_sent) return;
      request->started_sent = true;
      sink = request->sink;
      started.set_route_reason(request->reason);
      difference = static_cast<double>(request->predicted_cached) -
                   static_cast<double>(started.cached_tokens().device());
    }
    if (predicted_minus_actual_ != nullptr) predicted_minus_actual_->Observe(difference);
    started.set_worker(options_.workers[static_cast<size_t>(w)]);
    sink->OnStarted(std::move(started));
  }

  std::shared_ptr<RequestSink> TokenSink(int w, int64_t generation, const v1::StepDelta& delta) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Request* request = FindLocked(w, generation, delta.id());
    if (request == nullptr) return nullptr;
    if (!request->token_sent) {  // prefill is over, and so are other tries
      request->token_sent = true;
      At(w).uncached_tokens_in_flight -= std::exchange(request->charged_tokens, 0);
      const std::string request_id = request->submit.request_id();
      request->submit.Clear();
      request->submit.set_request_id(request_id);
    }
    return request->sink;
  }

  void OnFinished(int w, int64_t generation, v1::StepFinished* finished) {
    const absl::Status status =
        finished->has_error() ? StatusFromProto(finished->error()) : absl::OkStatus();
    std::shared_ptr<RequestSink> sink;
    int attempt = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Request* request = FindLocked(w, generation, finished->id());
      if (request == nullptr) return;
      if (status.code() == absl::StatusCode::kUnavailable) {
        At(w).refused_until_us = clock_.NowUs() + kRefusedForUs;
        attempt = request->attempts;
      } else {
        sink = std::move(request->sink);
        ReleaseLocked(request);
        requests_.erase(finished->id());
      }
    }
    if (sink == nullptr) {
      Retry(finished->id(), attempt, status);
    } else {
      sink->OnEnd(status, std::move(*finished->mutable_finished()));
    }
  }

  // Tells the worker of a request, if it has it.
  void Tell(uint64_t id, bool forget, const std::function<void(v1::Command*)>& fill) {
    int worker;
    int64_t generation;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto it = requests_.find(id);
      if (it == requests_.end()) return;
      worker = it->second.worker;
      generation = it->second.generation;
      if (forget) {
        ReleaseLocked(&it->second);
        requests_.erase(it);
      }
    }
    if (worker < 0) return;
    v1::Command command;
    fill(&command);
    LinkOf(worker)->Send(generation, std::move(command));
  }

  void Stop() {
    std::vector<std::shared_ptr<RequestSink>> sinks;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (std::exchange(stopping_, true)) return;
      for (auto& [id, request] : requests_) {
        ReleaseLocked(&request);
        sinks.push_back(std::move(request.sink));
      }
      requests_.clear();
    }
    for (const auto& sink : sinks)
      sink->OnEnd(absl::UnavailableError("this router is going down"), {});
    for (WorkerState& worker : workers_) worker.link->Stop();
    reader_.reset();
  }

  const RouterOptions options_;
  const Logger* const log_;
  const std::function<void(bool)> on_ready_;
  const SteadyClock clock_;
  prometheus::Histogram* decision_seconds_ = nullptr;
  prometheus::Histogram* predicted_minus_actual_ = nullptr;
  std::shared_ptr<void> reader_;
  std::atomic<uint64_t> next_id_{1};

  mutable std::mutex mutex_;          // guards all below; no sink, link or event is called under it
  std::vector<WorkerState> workers_;  // its size and links are constant after construction
  std::unordered_map<uint64_t, Request> requests_;
  PrefixHistory history_;
  int num_connected_ = 0;
  int round_robin_ = 0;
  bool stopping_ = false;
};

Router::Router(const RouterOptions& options, MetricsPage* page, const Logger* log,
               std::function<void(bool)> on_ready)
    : impl_(std::make_unique<Impl>(options, page, log, std::move(on_ready))) {}
Router::~Router() { Stop(); }
void Router::Stop() { impl_->Stop(); }

absl::StatusOr<std::shared_ptr<const ServedModel>> Router::FindModel(const std::string& name) {
  std::map<std::string, std::shared_ptr<const ServedModel>> known;
  for (auto& model : Models()) known[model->info.name()] = std::move(model);
  if (known.empty()) {
    return absl::UnavailableError("no worker has been reached yet, so no model is known");
  }
  std::string names;
  for (const auto& [own, model] : known) absl::StrAppend(&names, names.empty() ? "" : ", ", own);
  if (name.empty()) {
    if (known.size() == 1) return known.begin()->second;
    return absl::InvalidArgumentError("model is empty, and several are served: " + names);
  }
  const auto it = known.find(name);
  if (it != known.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("model '", name, "' is not served here, ", names, " is"));
}

std::vector<std::shared_ptr<const ServedModel>> Router::Models() {
  const std::lock_guard<std::mutex> lock(impl_->mutex_);
  // A model whose workers are connected comes before one of the same name that is gone.
  std::map<std::string, std::pair<bool, std::shared_ptr<const ServedModel>>> by_name;
  for (const Impl::WorkerState& worker : impl_->workers_) {
    if (worker.model == nullptr) continue;
    auto& entry = by_name[worker.model->info.name()];
    if (entry.second == nullptr || (worker.connected && !entry.first)) {
      entry = {worker.connected, worker.model};
    }
  }
  std::vector<std::shared_ptr<const ServedModel>> out;
  for (auto& [name, entry] : by_name) out.push_back(std::move(entry.second));
  return out;
}

uint64_t Router::NewRequestId() { return impl_->next_id_.fetch_add(1); }

absl::Status Router::Submit(v1::Submit submit, std::shared_ptr<const ServedModel> model,
                            std::shared_ptr<RequestSink> sink) {
  return impl_->Submit(std::move(submit), std::move(model), std::move(sink));
}

void Router::Cancel(uint64_t id, bool deadline_exceeded) {
  impl_->Tell(id, true, [&](v1::Command* command) {
    v1::Cancel* cancel = command->add_cancels();
    cancel->set_id(id);
    cancel->set_deadline_exceeded(deadline_exceeded);
  });
}

void Router::Consumed(uint64_t id, uint32_t num_tokens) {
  impl_->Tell(id, false, [&](v1::Command* command) {
    v1::Credit* credit = command->add_credits();
    credit->set_id(id);
    credit->set_tokens(num_tokens);
  });
}

v1::ListWorkersResponse Router::ListWorkers() const {
  v1::ListWorkersResponse out;
  const std::lock_guard<std::mutex> lock(impl_->mutex_);
  for (size_t i = 0; i < impl_->workers_.size(); ++i) {
    const Impl::WorkerState& worker = impl_->workers_[i];
    v1::WorkerInfo* info = out.add_workers();
    info->set_address(impl_->options_.workers[i]);
    info->set_connected(worker.connected);
    info->set_draining(worker.draining);
    if (worker.model != nullptr) *info->mutable_model() = worker.model->info;
    info->set_requests_in_flight(static_cast<uint32_t>(worker.requests_in_flight));
    info->set_tokens_in_flight(static_cast<uint64_t>(worker.uncached_tokens_in_flight));
    info->set_last_error(worker.last_error);
  }
  return out;
}

v1::ExplainRouteResponse Router::Explain(const v1::Submit& submit, const ServedModel& model) const {
  const std::vector<BlockKey> keys = KeysOf(submit, model);
  v1::ExplainRouteResponse out;
  const std::lock_guard<std::mutex> lock(impl_->mutex_);
  const auto candidates = impl_->CandidatesLocked(keys, model);
  const PlacementChoice choice =
      ChoosePlacement(candidates, submit.prompt_ids_size(), impl_->round_robin_);
  out.set_prompt_tokens(static_cast<uint32_t>(submit.prompt_ids_size()));
  out.set_route_reason(choice.reason);
  for (size_t i = 0; i < candidates.size(); ++i) {
    v1::ExplainRouteResponse::Candidate* c = out.add_candidates();
    c->set_worker(impl_->options_.workers[i]);
    c->set_predicted_cached_tokens(static_cast<uint32_t>(candidates[i].cached_tokens));
    c->set_cost(choice.costs[i]);
    c->set_refused(candidates[i].refused);
  }
  if (choice.worker >= 0)
    out.set_worker(impl_->options_.workers[static_cast<size_t>(choice.worker)]);
  return out;
}

absl::Status Router::DrainWorker(const std::string& address,
                                 std::function<void(absl::Status, uint32_t)> done) {
  WorkerLink* link = nullptr;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex_);
    for (size_t i = 0; i < impl_->workers_.size(); ++i) {
      if (impl_->options_.workers[i] != address) continue;
      impl_->workers_[i].draining = true;
      link = impl_->workers_[i].link.get();
    }
  }
  if (link == nullptr) {
    return absl::NotFoundError(absl::StrCat("no worker '", address, "' in --workers"));
  }
  link->Drain(std::move(done));
  return absl::OkStatus();
}

int Router::num_requests() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex_);
  return static_cast<int>(impl_->requests_.size());
}
bool Router::ready() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->num_connected_ > 0;
}

}  // namespace quire
