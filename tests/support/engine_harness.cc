#include "tests/support/engine_harness.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/backend/cpu_backend.h"

namespace quire::test {
namespace {

constexpr TimeUs kStepUs = 1000;  // virtual time of a step

void CheckOk(const absl::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "harness: %s: %s\n", what, status.ToString().c_str());
  std::abort();
}

void AppendToken(std::string* out, const SampledToken& t) {
  absl::StrAppendFormat(out, " %d:%08x", t.token, std::bit_cast<uint32_t>(t.logprob));
  for (const TokenLogprob& top : t.top) {
    absl::StrAppendFormat(out, "(%d:%08x)", top.token, std::bit_cast<uint32_t>(top.logprob));
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> TryLoadTestModel(const std::string& path,
                                                              const std::string& weights_dtype,
                                                              Isa isa) {
  LoadOptions options;
  options.path = path;
  options.weights_dtype = weights_dtype;
  options.isa = isa;
  options.num_threads = 2;
  ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, LoadModel(options));
  return model;
}

std::shared_ptr<const Model> LoadTestModel(const std::string& path,
                                           const std::string& weights_dtype, Isa isa) {
  auto model = TryLoadTestModel(path, weights_dtype, isa);
  CheckOk(model.status(), "loading a model");
  return *std::move(model);
}

SamplingParams Greedy(int32_t max_tokens, int32_t num_logprobs) {
  SamplingParams p;
  p.max_tokens = max_tokens;
  p.temperature = 0;
  p.ignore_eos = true;
  p.num_logprobs = num_logprobs;
  return p;
}

SamplingParams ScorePrompt(int32_t num_top) {
  SamplingParams p = Greedy(1);
  p.num_prompt_logprobs = num_top;
  return p;
}

std::string Fingerprint(const HarnessResult& result) {
  std::string out = absl::StrCat(result.status.ToString(), " prompt ", result.prompt_tokens,
                                 " completion ", result.completion_tokens, "\n");
  if (!result.prompt_logprobs.empty()) {
    out += "prompt logprobs";
    for (const SampledToken& t : result.prompt_logprobs) AppendToken(&out, t);
    out += "\n";
  }
  for (const HarnessResult::Choice& c : result.choices) {
    absl::StrAppend(&out, "choice, reason ", static_cast<int>(c.reason), ", stop '", c.stop_matched,
                    "', text '", c.text, "', tokens");
    for (int32_t t : c.tokens) absl::StrAppend(&out, " ", t);
    out += "\nlogprobs";
    for (const SampledToken& t : c.logprobs) AppendToken(&out, t);
    out += "\n";
  }
  return out;
}

EngineHarness::EngineHarness(std::shared_ptr<const Model> model, HarnessOptions options)
    : model_(std::move(model)), options_(std::move(options)) {
  const ModelConfig& c = model_->config;
  const int32_t max_model_len =
      options_.max_model_len > 0
          ? options_.max_model_len
          : std::min(c.max_position, options_.num_blocks * options_.block_size);
  const KvLayout layout{options_.kv_dtype, options_.block_size, c.num_layers, c.num_kv_heads,
                        c.head_size};
  CpuBackendOptions b;
  b.num_threads = options_.num_threads;
  b.isa = model_->head.isa;  // what the weights were packed for
  b.kv_dtype = options_.kv_dtype;
  b.block_size = options_.block_size;
  b.kv_memory_bytes = options_.kv_memory_bytes > 0 ? options_.kv_memory_bytes
                                                   : options_.num_blocks * layout.page_bytes();
  b.max_num_seqs = options_.max_num_seqs;
  b.max_num_batched_tokens = options_.max_num_batched_tokens;
  b.max_model_len = max_model_len;
  auto backend = CreateCpuBackend(model_, b);
  CheckOk(backend.status(), "making the backend");
  if (options_.capture_logits) {
    (*backend)->set_logits_observer(
        [this](const StepPlan& plan, int32_t row, std::span<const float> logits) {
          for (const PlanSequence& s : plan.sequences) {
            if (row < s.first_row || row >= s.first_row + s.num_rows) continue;
            logits_[{s.sequence_id, s.first_position + row - s.first_row}].assign(logits.begin(),
                                                                                  logits.end());
          }
        });
  }
  backend_ = *std::move(backend);

  EngineOptions e;
  e.block_size = options_.block_size;
  e.num_blocks = backend_->num_blocks();
  e.num_slots = backend_->num_slots();
  e.max_num_seqs = options_.max_num_seqs;
  e.max_num_batched_tokens = options_.max_num_batched_tokens;
  e.max_steps_in_flight = options_.max_steps_in_flight;
  e.max_model_len = max_model_len;
  e.enable_prefix_caching = options_.enable_prefix_caching;
  e.paged = options_.paged;
  e.eos_ids = model_->config.eos_ids;
  e.tokenizer = model_->tokenizer.get();
  core_ = std::make_unique<EngineCore>(e);
}

EngineHarness::~EngineHarness() = default;

BlockKey EngineHarness::Root(const std::string& tenant_salt) const {
  BlockKeyRoot root;
  root.model_digest = model_->digest;
  root.kv_layout = backend_->kv_layout().Name();
  root.numerics = backend_->numerics();
  root.salt = tenant_salt;
  return root.Compute();
}

RequestId EngineHarness::Submit(const HarnessRequest& request) {
  EngineRequest r;
  r.id = next_id_++;
  r.prompt = request.prompt;
  r.resume = request.resume;
  r.sampling = std::make_shared<const SamplingParams>(request.sampling);
  r.root = Root(request.tenant_salt.empty() ? options_.tenant_salt : request.tenant_salt);
  r.priority = request.priority;
  r.arrival_us = now_us_;
  r.deadline_us = request.deadline_us;
  // The service clears it for prompt logprobs too (contract: no cache reads).
  r.read_prefix_cache = request.read_prefix_cache && request.sampling.num_prompt_logprobs < 0;
  r.store_prefix = request.store_prefix;
  r.cacheable_tokens = request.cacheable_tokens;
  r.cacheable_ttl_us = request.cacheable_ttl_us;
  r.credit_tokens = request.credit_tokens;
  results_[r.id].choices.resize(static_cast<size_t>(request.sampling.n));
  const RequestId id = r.id;
  EngineOutputs outputs;
  core_->Submit(now_us_, std::move(r), &outputs);
  Take(&outputs);
  return id;
}

void EngineHarness::Cancel(RequestId id, absl::Status status) {
  EngineOutputs outputs;
  core_->Cancel(now_us_, id, std::move(status), &outputs);
  Take(&outputs);
}

bool EngineHarness::Step() {
  EngineOutputs outputs;
  while (static_cast<int>(in_flight_.size()) < options_.max_steps_in_flight) {
    auto plan = std::make_unique<StepPlan>();
    if (!core_->MakePlan(now_us_, plan.get(), &outputs)) break;
    if (on_plan) on_plan(*plan);
    CheckOk(backend_->Launch(*plan), "Launch");
    in_flight_.push_back(std::move(plan));
  }
  now_us_ += kStepUs;
  const bool worked = !in_flight_.empty() || !outputs.empty();
  if (!in_flight_.empty()) {
    auto result = backend_->Finish();
    CheckOk(result.status(), "Finish");
    QUIRE_CHECK(result->step_id == in_flight_.front()->step_id);
    core_->Complete(now_us_, *result, &outputs);
    in_flight_.pop_front();
    ++num_steps_;
  }
  Take(&outputs);
  CheckOk(core_->CheckInvariants(), "CheckInvariants");
  return worked;
}

void EngineHarness::RunUntilIdle() {
  while (!core_->idle()) {
    if (Step()) continue;
    // Nothing to run: the core waits for time, or it hangs.
    const TimeUs wakeup = core_->next_wakeup_us();
    CheckOk(
        wakeup > now_us_ ? absl::OkStatus() : absl::InternalError("nothing to run and not idle"),
        "RunUntilIdle");
    now_us_ = wakeup;
  }
}

std::vector<HarnessResult> EngineHarness::Run(const std::vector<HarnessRequest>& requests) {
  std::vector<RequestId> ids;
  for (const HarnessRequest& r : requests) ids.push_back(Submit(r));
  RunUntilIdle();
  std::vector<HarnessResult> results;
  for (RequestId id : ids) results.push_back(std::move(results_.extract(id).mapped()));
  return results;
}

HarnessResult EngineHarness::RunOne(const HarnessRequest& request) {
  return std::move(Run({request})[0]);
}

const std::vector<float>& EngineHarness::logits_at(int32_t position, int64_t sequence) const {
  const std::vector<float>* found = nullptr;
  for (const auto& [key, logits] : logits_) {
    if (key.second != position || (sequence >= 0 && key.first != sequence)) continue;
    QUIRE_CHECK(found == nullptr);  // more than one sequence: name it
    found = &logits;
  }
  QUIRE_CHECK(found != nullptr);
  return *found;
}

void EngineHarness::Take(EngineOutputs* outputs) {
  for (const RequestStarted& s : outputs->started) {
    HarnessResult& r = results_.at(s.request_id);
    ++r.num_started;
    r.prompt_tokens = s.prompt_tokens;
    r.cached_tokens = s.cached_tokens;
  }
  for (ChoiceDelta& d : outputs->deltas) {
    HarnessResult& r = results_.at(d.request_id);
    QUIRE_CHECK(!r.finished() && r.num_started == 1);
    HarnessResult::Choice& c = r.choices.at(static_cast<size_t>(d.index));
    c.text += d.text;
    c.deltas.push_back(d.text);
    c.tokens.insert(c.tokens.end(), d.token_ids.begin(), d.token_ids.end());
    std::move(d.logprobs.begin(), d.logprobs.end(), std::back_inserter(c.logprobs));
    std::move(d.prompt_logprobs.begin(), d.prompt_logprobs.end(),
              std::back_inserter(r.prompt_logprobs));
  }
  for (RequestFinished& f : outputs->finished) {
    HarnessResult& r = results_.at(f.request_id);
    ++r.num_finished;
    QUIRE_CHECK(r.num_finished == 1);
    r.status = std::move(f.status);
    r.completion_tokens = f.completion_tokens;
    if (r.num_started > 0) {
      QUIRE_CHECK(r.prompt_tokens == f.prompt_tokens && r.cached_tokens == f.cached_tokens);
    }
    for (size_t i = 0; i < f.choices.size() && i < r.choices.size(); ++i) {
      r.choices[i].reason = f.choices[i].reason;
      r.choices[i].stop_matched = std::move(f.choices[i].stop_matched);
    }
  }
  *outputs = {};
}

}  // namespace quire::test
