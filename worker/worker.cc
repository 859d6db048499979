#include "worker/worker.h"

#include <openssl/sha.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/block_key.h"
#include "common/inference/step_fan_out.h"
#include "common/status_macros.h"
#include "worker/engine_messages.h"

namespace quire {
namespace {

constexpr int64_t kHitRateWindowUs = 300'000'000;
// Advice about the hit rate: below this, at least so many tokens asked, at most so often.
constexpr double kLowHitRate = 0.85;
constexpr int64_t kHitRateMinTokens = 100'000;
constexpr int64_t kAdviceEveryUs = 300'000'000;
// What a refused request is told to wait: about the time that a step takes to make room.
constexpr int64_t kQueueRetryMs = 200;

std::string HexSha256(std::initializer_list<std::string_view> parts) {
  std::string joined;
  for (const std::string_view part : parts)
    absl::StrAppend(&joined, part.size(), ":", std::string(part));
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(joined.data()), joined.size(), digest);
  std::string hex;
  for (const unsigned char byte : digest) hex += absl::StrFormat("%02x", byte);
  return hex;
}

void SetDefaults(const ModelConfig& config, v1::GenerationDefaults* out) {
  if (config.temperature) out->set_temperature(*config.temperature);
  if (config.top_p) out->set_top_p(*config.top_p);
  if (config.top_k) out->set_top_k(*config.top_k);
  if (config.min_p) out->set_min_p(*config.min_p);
  if (config.repetition_penalty) out->set_repetition_penalty(*config.repetition_penalty);
}

// The longest sequence that model, flag and pool allow.
absl::StatusOr<int32_t> ChooseModelLen(const WorkerOptions& options, const ModelConfig& config,
                                       const Backend& backend) {
  const int64_t pool = int64_t{backend.num_blocks()} * options.block_size;
  const int64_t own = config.max_position;
  if (options.max_model_len == 0) return static_cast<int32_t>(std::min(own, pool));
  if (options.max_model_len > own) {
    return absl::InvalidArgumentError(absl::StrCat("--max-model-len is ", options.max_model_len,
                                                   ", model ", config.name, " is made for ", own));
  }
  if (options.max_model_len > pool) {
    return absl::InvalidArgumentError(absl::StrCat("--max-model-len is ", options.max_model_len,
                                                   ", the KV cache holds ", pool,
                                                   " tokens: raise --kv-cache-memory"));
  }
  return options.max_model_len;
}

}  // namespace

class Worker::Impl {
 public:
  Impl(WorkerOptions options, std::shared_ptr<const Model> model, std::unique_ptr<Backend> backend,
       const Logger* log)
      : options_(std::move(options)),
        model_(std::move(model)),
        backend_(std::move(backend)),
        log_(log) {}

  absl::Status Start(MetricsPage* page);
  absl::Status Submit(const std::shared_ptr<StepSink>& sink, const v1::Submit& submit);
  void Stop();
  void CollectMetrics(std::vector<MetricSample>* out);
  void set_on_failed(std::function<void(const absl::Status&)> on_failed) {
    const std::lock_guard<std::mutex> lock(on_failed_mutex_);
    on_failed_ = std::move(on_failed);
  }

  struct Route {
    std::shared_ptr<StepSink> sink;
    uint64_t client_id;
    bool prompt_logprobs_begun = false;
  };

  // Engine ids of a sink's request, or of all with `client_id` absent; forgets their routes.
  std::vector<RequestId> TakeRoutes(const StepSink* sink, std::optional<uint64_t> client_id) {
    const std::lock_guard<std::mutex> lock(routes_mutex_);
    std::vector<RequestId> ids;
    auto it =
        client_id ? by_client_.lower_bound({sink, *client_id}) : by_client_.lower_bound({sink, 0});
    while (it != by_client_.end() && it->first.first == sink &&
           (!client_id || it->first.second == *client_id)) {
      ids.push_back(it->second);
      routes_.erase(it->second);
      it = by_client_.erase(it);
    }
    return ids;
  }

  const WorkerOptions options_;
  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<Backend> backend_;
  const Logger* const log_;
  const SteadyClock clock_;
  TimeUs started_us_ = 0;
  std::shared_ptr<const ServedModel> served_;
  std::string tokenizer_digest_;
  std::unique_ptr<Engine> engine_;
  prometheus::Histogram* prefill_seconds_ = nullptr;
  std::shared_ptr<void> metrics_reader_;
  std::atomic<bool> draining_{false};
  std::atomic<RequestId> next_id_{1};

  mutable std::mutex routes_mutex_;  // guards the two maps; taken alone
  std::unordered_map<RequestId, Route> routes_;
  std::map<std::pair<const StepSink*, uint64_t>, RequestId> by_client_;

 private:
  void Deliver(EngineOutputs outputs);
  void BeginPromptLogprobs(RequestId id) {
    const std::lock_guard<std::mutex> lock(routes_mutex_);
    const auto it = routes_.find(id);
    if (it != routes_.end()) it->second.prompt_logprobs_begun = true;
  }
  void DeliveryLoop();
  void Tick();
  absl::Status CheckKeys(const v1::Submit& submit, const EngineRequest& request) const;

  std::mutex queue_mutex_;           // guards the two below; taken alone
  std::deque<EngineOutputs> queue_;  // bounded by the credits of the requests
  bool stopping_ = false;
  std::condition_variable queue_changed_;

  std::mutex on_failed_mutex_;  // guards the one below; it is called under it
  std::function<void(const absl::Status&)> on_failed_;

  std::mutex hit_rate_mutex_;  // guards the two below
  SlidingRatio hit_rate_{kHitRateWindowUs};
  TimeUs last_advice_us_ = 0;

  std::once_flag stop_once_;
  std::thread delivery_;
};

absl::Status Worker::Impl::Start(MetricsPage* page) {
  ASSIGN_OR_RETURN(const int32_t model_len, ChooseModelLen(options_, model_->config, *backend_));
  auto served = std::make_shared<ServedModel>();
  served->info.set_name(options_.served_model_name.empty() ? model_->config.name
                                                           : options_.served_model_name);
  served->info.set_digest(model_->digest);
  served->info.set_max_model_len(static_cast<uint32_t>(model_len));
  served->info.set_kv_layout(backend_->kv_layout().Name());
  served->info.set_weights(model_->weights);
  served->info.set_vocab_size(static_cast<uint32_t>(backend_->vocab()));
  served->info.set_block_size(static_cast<uint32_t>(options_.block_size));
  served->numerics = backend_->numerics();
  SetDefaults(model_->config, &served->defaults);
  served->eos_ids = model_->config.eos_ids;
  served->cache_ttl_us = options_.cache_ttl * 1'000'000;
  if (model_->tokenizer != nullptr) {
    served->tokenizer = std::shared_ptr<const Tokenizer>(model_, model_->tokenizer.get());
  }
  served->tokenizer_error = model_->tokenizer_error;
  ChooseChatTemplate(served.get());
  served_ = std::move(served);
  tokenizer_digest_ = HexSha256({model_->tokenizer_json, model_->tokenizer_config_json,
                                 model_->digest, served_->info.name()});

  if (page != nullptr) {
    prefill_seconds_ =
        &page->AddHistogram("quire_prefill_time_seconds", "From first scheduled to first token.",
                            LatencyBounds(), options_.metric_labels);
  }
  EngineOptions engine;
  engine.block_size = options_.block_size;
  engine.max_num_seqs = options_.max_num_seqs;
  engine.max_num_batched_tokens =
      options_.max_num_batched_tokens == 0 ? 256 : options_.max_num_batched_tokens;
  engine.max_step_us = int64_t{options_.max_step_ms} * 1000;
  engine.max_model_len = model_len;
  engine.max_queue = options_.max_queue;
  engine.enable_prefix_caching = options_.enable_prefix_caching;
  engine.paged = options_.enable_paged_attn;
  engine.eos_ids = model_->config.eos_ids;
  engine.tokenizer = model_->tokenizer.get();
  started_us_ = clock_.NowUs();
  engine_ = std::make_unique<Engine>(engine, backend_.get(), &clock_, [this](EngineOutputs out) {
    {
      const std::lock_guard<std::mutex> lock(queue_mutex_);
      queue_.push_back(std::move(out));
    }
    queue_changed_.notify_one();
  });
  delivery_ = std::thread([this] { DeliveryLoop(); });
  if (page != nullptr) {
    metrics_reader_ =
        page->AddReader([this](std::vector<MetricSample>* out) { CollectMetrics(out); });
  }
  if (log_ != nullptr) {
    for (const std::string& warning : model_->warnings) log_->Warning(warning);
    log_->Info("model ready", {{"model", served_->info.name()},
                               {"weights", model_->weights},
                               {"weight_bytes", model_->packed_bytes},
                               {"kv_layout", served_->info.kv_layout()},
                               {"kv_tokens", int64_t{backend_->num_blocks()} * options_.block_size},
                               {"max_model_len", model_len},
                               {"numerics", served_->numerics}});
    if (!served_->tokenizer_error.empty()) {
      log_->Warning("no tokenizer", {{"reason", served_->tokenizer_error}});
    } else if (!served_->chat_template_error.empty()) {
      log_->Warning("no chat template", {{"reason", served_->chat_template_error}});
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::Impl::CheckKeys(const v1::Submit& submit, const EngineRequest& request) const {
  if (!submit.model_digest().empty() && submit.model_digest() != model_->digest) {
    return absl::FailedPreconditionError(absl::StrCat("the request is for the model with digest ",
                                                      submit.model_digest(), ", this worker has ",
                                                      model_->digest));
  }
  const size_t block = static_cast<size_t>(options_.block_size);
  if (submit.block_keys_size() > 0 && request.prompt.size() >= block) {
    const BlockKey first =
        NextBlockKey(request.root, "", std::span<const int32_t>(request.prompt).first(block));
    const std::string_view own(reinterpret_cast<const char*>(first.bytes.data()), 32);
    if (submit.block_keys(0) != own) {
      return absl::FailedPreconditionError(
          "the router derives another block key: it disagrees on model digest, kv_layout, numerics "
          "or salt");
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::Impl::Submit(const std::shared_ptr<StepSink>& sink, const v1::Submit& submit) {
  if (draining_.load()) return absl::UnavailableError("this worker is draining");
  EngineRequest request = EngineRequestFromSubmit(submit);
  request.root = BlockKeyRoot{.model_digest = model_->digest,
                              .kv_layout = served_->info.kv_layout(),
                              .numerics = served_->numerics,
                              .adapter = "",
                              .salt = submit.salt()}
                     .Compute();
  RETURN_IF_ERROR(CheckKeys(submit, request));
  for (const uint32_t id : submit.prompt_ids()) {
    if (id >= served_->info.vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt_ids has ", id, ", vocab_size is ", served_->info.vocab_size()));
    }
  }
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  RETURN_IF_ERROR(
      ValidateSamplingParams(*request.sampling, static_cast<int32_t>(served_->info.vocab_size())));
  request.arrival_us = clock_.NowUs();
  if (submit.timeout_us() > 0) request.deadline_us = request.arrival_us + submit.timeout_us();
  request.id = next_id_.fetch_add(1);
  const RequestId id = request.id;
  {
    const std::lock_guard<std::mutex> lock(routes_mutex_);
    if (!by_client_.emplace(std::pair(sink.get(), submit.id()), id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("request id ", submit.id(), " is in use on this stream"));
    }
    routes_[id] = Route{sink, submit.id(), !submit.resume_ids().empty()};
  }
  absl::Status status = engine_->Submit(std::move(request));
  if (!status.ok()) {
    TakeRoutes(sink.get(), submit.id());
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      status = WithRetryAfter(std::move(status), kQueueRetryMs);
    }
  }
  return status;
}

void Worker::Impl::Deliver(EngineOutputs outputs) {
  // Few sinks a step: the local front and one a router.
  std::vector<std::pair<std::shared_ptr<StepSink>, v1::StepOutput>> by_sink;
  const auto output_for = [&](const Route& route) -> v1::StepOutput& {
    for (auto& [sink, output] : by_sink) {
      if (sink == route.sink) return output;
    }
    return by_sink.emplace_back(route.sink, v1::StepOutput()).second;
  };
  const auto find = [&](RequestId id, bool forget) -> std::optional<Route> {
    const std::lock_guard<std::mutex> lock(routes_mutex_);
    const auto it = routes_.find(id);
    if (it == routes_.end()) return std::nullopt;  // cancelled
    Route route = it->second;
    if (forget) {
      by_client_.erase({route.sink.get(), route.client_id});
      routes_.erase(it);
    }
    return route;
  };
  for (const RequestStarted& started : outputs.started) {
    if (const auto route = find(started.request_id, false)) {
      v1::StepStarted* out = output_for(*route).add_started();
      out->set_id(route->client_id);
      *out->mutable_started() = StartedToProto(started);
    }
  }
  for (ChoiceDelta& delta : outputs.deltas) {
    if (const auto route = find(delta.request_id, false)) {
      v1::StepDelta* out = output_for(*route).add_deltas();
      out->set_id(route->client_id);
      *out->mutable_delta() = DeltaToProto(std::move(delta));
      if (out->delta().prompt_logprobs_size() > 0 && !route->prompt_logprobs_begun) {
        out->mutable_delta()->mutable_prompt_logprobs(0)->Clear();  // nothing came before it
        BeginPromptLogprobs(delta.request_id);
      }
    }
  }
  for (const RequestFinished& finished : outputs.finished) {
    if (prefill_seconds_ != nullptr && finished.status.ok()) {
      prefill_seconds_->Observe(static_cast<double>(finished.prefill_us) * 1e-6);
    }
    if (const auto route = find(finished.request_id, true)) {
      v1::StepFinished* out = output_for(*route).add_finished();
      out->set_id(route->client_id);
      if (finished.status.ok()) {
        *out->mutable_finished() = FinishedToProto(finished);
      } else {
        absl::Status status = finished.status;
        if (status.code() == absl::StatusCode::kResourceExhausted) {
          status = WithRetryAfter(std::move(status), kQueueRetryMs);
        }
        *out->mutable_error() = StatusToProto(status);
      }
    }
  }
  for (auto& [sink, output] : by_sink) sink->OnStep(std::move(output));
}

void Worker::Impl::DeliveryLoop() {
  TimeUs next_tick = clock_.NowUs();
  while (true) {
    std::deque<EngineOutputs> batch;
    bool stopping;
    {
      std::unique_lock<std::mutex> lock(queue_mutex_);
      queue_changed_.wait_for(lock, std::chrono::seconds(1),
                              [&] { return stopping_ || !queue_.empty(); });
      batch.swap(queue_);
      stopping = stopping_;
    }
    for (EngineOutputs& outputs : batch) Deliver(std::move(outputs));
    if (stopping && batch.empty()) return;
    if (const TimeUs now = clock_.NowUs(); now >= next_tick && !stopping) {
      Tick();
      next_tick = now + 1'000'000;
    }
  }
}

void Worker::Impl::Tick() {
  if (const absl::Status engine_health = engine_->health(); !engine_health.ok()) {
    const std::lock_guard<std::mutex> lock(on_failed_mutex_);
    if (on_failed_) std::exchange(on_failed_, nullptr)(engine_health);
  }
  const EngineStats stats = engine_->stats();
  const TimeUs now = clock_.NowUs();
  double ratio;
  {
    const std::lock_guard<std::mutex> lock(hit_rate_mutex_);
    hit_rate_.Update(now, stats.prefix_hits_tokens, stats.prefix_queries_tokens);
    ratio = hit_rate_.ratio();
    const bool low = hit_rate_.asked() >= kHitRateMinTokens && ratio < kLowHitRate;
    if (!low || now - last_advice_us_ < kAdviceEveryUs) return;
    last_advice_us_ = now;
  }
  if (log_ == nullptr || !options_.enable_prefix_caching) return;
  const bool full = stats.blocks_free + stats.blocks_cached < stats.blocks_total / 10;
  log_->Warning(
      "the cache hit rate of the last five minutes is low",
      {{"quire_cache_hit_rate", ratio},
       {"advice", full ? "raise --kv-cache-memory or take --kv-cache-dtype fp8"
                       : "put what is common to requests first in their prompts, and mark "
                         "it cacheable"}});
}

void Worker::Impl::CollectMetrics(std::vector<MetricSample>* out) {
  const EngineStats s = engine_->stats();
  double hit_rate;
  {
    const std::lock_guard<std::mutex> lock(hit_rate_mutex_);
    hit_rate_.Update(clock_.NowUs(), s.prefix_hits_tokens, s.prefix_queries_tokens);
    hit_rate = hit_rate_.ratio();
  }
  const auto add = [&](MetricSample::Kind kind, const char* name, const char* help, double value,
                       const MetricLabels& more = {}) {
    MetricLabels labels = options_.metric_labels;
    labels.insert(more.begin(), more.end());
    out->push_back({kind, name, help, std::move(labels), value});
  };
  const auto gauge = MetricSample::Kind::kGauge;
  const auto counter = MetricSample::Kind::kCounter;
  const auto d = [](int64_t x) { return static_cast<double>(x); };
  const MetricLabels device = {{"tier", "device"}};
  add(gauge, "quire_cache_hit_rate",
      "Prefix tokens found / asked over the last five minutes; NaN if none were asked.", hit_rate);
  add(counter, "quire_prefix_cache_queries_tokens_total", "Prompt tokens looked up.",
      d(s.prefix_queries_tokens), device);
  add(counter, "quire_prefix_cache_hits_tokens_total", "Prompt tokens found.",
      d(s.prefix_hits_tokens), device);
  add(gauge, "quire_kv_usage_ratio", "Blocks held by sequences / all blocks.",
      s.blocks_total == 0 ? 0 : d(s.blocks_held) / d(s.blocks_total), device);
  add(gauge, "quire_kv_waste_ratio", "Positions of held blocks that hold no token.",
      s.slots_allocated == 0 ? 0 : 1 - d(s.slots_used) / d(s.slots_allocated));
  add(counter, "quire_preemptions_total", "Sequences that gave up their blocks to rerun later.",
      d(s.preemptions));
  add(gauge, "quire_tickets_open", "Counted holds on blocks.", d(s.tickets_open),
      {{"reason", "sequence"}});
  add(gauge, "quire_queue_depth", "Requests that wait to be scheduled.", d(s.num_waiting));
  add(gauge, "quire_requests_running", "Choices in the running set.", d(s.num_running));
  add(counter, "quire_steps_total", "Engine steps.", d(s.steps));
  add(counter, "quire_prompt_tokens_total", "Prompt tokens of requests.", d(s.prompt_tokens));
  add(counter, "quire_generated_tokens_total", "Tokens sampled.", d(s.generated_tokens));
  const char* kBlocks = "quire_kv_blocks";
  const char* kBlocksHelp = "Blocks by state; held includes pinned ones that are in use.";
  add(gauge, kBlocks, kBlocksHelp, d(s.blocks_held), {{"state", "held"}});
  add(gauge, kBlocks, kBlocksHelp, d(s.blocks_cached), {{"state", "cached"}});
  add(gauge, kBlocks, kBlocksHelp, d(s.blocks_free), {{"state", "free"}});
  add(gauge, kBlocks, kBlocksHelp, d(s.blocks_pinned), {{"state", "pinned"}});
}

void Worker::Impl::Stop() {
  std::call_once(stop_once_, [this] {
    draining_.store(true);
    metrics_reader_.reset();
    if (engine_ != nullptr) engine_->Stop();
    {
      const std::lock_guard<std::mutex> lock(queue_mutex_);
      stopping_ = true;
    }
    queue_changed_.notify_one();
    if (delivery_.joinable()) delivery_.join();
  });
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Assemble(const WorkerOptions& options,
                                                         std::shared_ptr<const Model> model,
                                                         std::unique_ptr<Backend> backend,
                                                         const Logger* log, MetricsPage* page) {
  auto impl = std::make_unique<Impl>(options, std::move(model), std::move(backend), log);
  RETURN_IF_ERROR(impl->Start(page));
  return std::unique_ptr<Worker>(new Worker(std::move(impl)));
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() { Stop(); }
void Worker::Stop() { impl_->Stop(); }

const std::shared_ptr<const ServedModel>& Worker::served_model() const { return impl_->served_; }
const Model& Worker::model() const { return *impl_->model_; }
Backend& Worker::backend() { return *impl_->backend_; }
const WorkerOptions& Worker::options() const { return impl_->options_; }

v1::GetTokenizerResponse Worker::TokenizerFiles(const std::string& known_digest) const {
  v1::GetTokenizerResponse out;
  const ServedModel& served = *impl_->served_;
  *out.mutable_model() = served.info;
  out.set_numerics(served.numerics);
  *out.mutable_defaults() = served.defaults;
  out.mutable_eos_ids()->Assign(served.eos_ids.begin(), served.eos_ids.end());
  out.set_cache_ttl_us(served.cache_ttl_us);
  out.set_digest(impl_->tokenizer_digest_);
  if (known_digest == impl_->tokenizer_digest_) return out;
  out.set_tokenizer_json(impl_->model_->tokenizer_json);
  out.set_tokenizer_config_json(impl_->model_->tokenizer_config_json);
  if (impl_->model_->tokenizer_spec != nullptr) {
    *out.mutable_spec() = TokenizerSpecToProto(*impl_->model_->tokenizer_spec);
  }
  return out;
}

absl::Status Worker::Submit(const std::shared_ptr<StepSink>& sink, const v1::Submit& submit) {
  return impl_->Submit(sink, submit);
}

void Worker::Cancel(const StepSink* sink, uint64_t id, absl::Status status) {
  for (const RequestId engine_id : impl_->TakeRoutes(sink, id)) {
    impl_->engine_->Cancel(engine_id, status);
  }
}

void Worker::CancelAll(const StepSink* sink, const absl::Status& status) {
  for (const RequestId engine_id : impl_->TakeRoutes(sink, std::nullopt)) {
    impl_->engine_->Cancel(engine_id, status);
  }
}

void Worker::Consumed(const StepSink* sink, uint64_t id, uint32_t num_tokens) {
  RequestId engine_id;
  {
    const std::lock_guard<std::mutex> lock(impl_->routes_mutex_);
    const auto it = impl_->by_client_.find({sink, id});
    if (it == impl_->by_client_.end()) return;
    engine_id = it->second;
  }
  impl_->engine_->Consumed(engine_id,
                           static_cast<int32_t>(std::min<uint32_t>(num_tokens, 1 << 20)));
}

void Worker::Drain() {
  impl_->draining_.store(true);
  impl_->engine_->Drain();
}
bool Worker::draining() const { return impl_->draining_.load(); }
int Worker::num_requests() const {
  const std::lock_guard<std::mutex> lock(impl_->routes_mutex_);
  return static_cast<int>(impl_->routes_.size());
}

EngineStats Worker::stats() const { return impl_->engine_->stats(); }
v1::WorkerStats Worker::StatsMessage() const {
  v1::WorkerStats out = StatsToProto(stats());
  out.set_uptime_seconds(static_cast<double>(impl_->clock_.NowUs() - impl_->started_us_) * 1e-6);
  out.set_draining(draining());
  return out;
}
absl::Status Worker::health() const { return impl_->engine_->health(); }
void Worker::set_on_failed(std::function<void(const absl::Status&)> on_failed) {
  impl_->set_on_failed(std::move(on_failed));
}

class LocalDispatcher::Sink final : public StepSink {
 public:
  void OnStep(v1::StepOutput output) override {
    for (v1::StepStarted& started : *output.mutable_started()) {
      started.mutable_started()->set_worker(name());
      started.mutable_started()->set_route_reason("direct");
    }
    fan_out.Deliver(std::move(output));
  }
  std::string name() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return name_;
  }
  void set_name(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    name_ = name;
  }
  StepFanOut fan_out;
  std::atomic<uint64_t> next_id{1};

 private:
  mutable std::mutex mutex_;
  std::string name_;  // guarded by mutex_
};

LocalDispatcher::LocalDispatcher(Worker* worker, const std::string& name)
    : worker_(worker), sink_(std::make_shared<Sink>()) {
  set_name(name);
}
void LocalDispatcher::set_name(const std::string& name) { sink_->set_name(name); }
LocalDispatcher::~LocalDispatcher() {
  worker_->CancelAll(sink_.get(), absl::UnavailableError("this server is going down"));
}

absl::StatusOr<std::shared_ptr<const ServedModel>> LocalDispatcher::FindModel(
    const std::string& name) {
  const std::shared_ptr<const ServedModel>& served = worker_->served_model();
  if (name.empty() || name == served->info.name()) return served;
  return absl::NotFoundError(
      absl::StrCat("model '", name, "' is not served here, ", served->info.name(), " is"));
}

std::vector<std::shared_ptr<const ServedModel>> LocalDispatcher::Models() {
  return {worker_->served_model()};
}

uint64_t LocalDispatcher::NewRequestId() { return sink_->next_id.fetch_add(1); }

absl::Status LocalDispatcher::Submit(v1::Submit submit, std::shared_ptr<const ServedModel>,
                                     std::shared_ptr<RequestSink> sink) {
  const uint64_t id = submit.id();
  sink_->fan_out.Add(id, std::move(sink));
  absl::Status status = worker_->Submit(sink_, submit);
  if (!status.ok()) sink_->fan_out.Remove(id);
  return status;
}

void LocalDispatcher::Cancel(uint64_t id, bool deadline_exceeded) {
  sink_->fan_out.Remove(id);
  worker_->Cancel(sink_.get(), id,
                  deadline_exceeded ? absl::DeadlineExceededError("the deadline passed")
                                    : absl::CancelledError("the client cancelled"));
}

void LocalDispatcher::Consumed(uint64_t id, uint32_t num_tokens) {
  worker_->Consumed(sink_.get(), id, num_tokens);
}

}  // namespace quire
