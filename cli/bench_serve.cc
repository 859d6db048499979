// quire bench serve: load on a running server over gRPC. Open loop (arrivals at a rate, or from a
// trace, whatever the server does) or closed loop (a number of clients, each with one request).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "common/clock.h"
#include "common/config/flags.h"
#include "common/status_macros.h"

namespace quire::cli {
namespace {

// Each request in flight has a thread of its own that waits for its stream.
constexpr int32_t kMaxInFlight = 512;

struct ServeFlags {
  std::string target = "127.0.0.1:8400";
  double rate = 0;
  std::string arrival = "poisson";
  std::string trace;
  double speedup = 1;
  int32_t concurrency = 4;
  int32_t num_requests = 64;
  int32_t prompt_tokens = 256;
  int32_t gen_tokens = 64;
  int32_t shared_prefix = 0;
  int64_t seed = 1;
  double ttft_target_ms = 0;
  double tpot_target_ms = 0;
  bool json = false;
};

struct Planned {
  double at_seconds = 0;  // after the start
  int64_t prompt_tokens = 0;
  int64_t gen_tokens = 0;
};

struct Measured {
  double ttft_ms = 0, tpot_ms = 0, total_ms = 0;
  int64_t tokens = 0, prompt_tokens = 0, cached_tokens = 0;
  bool ok = false;
};

// Azure LLM inference traces (CSV: TIMESTAMP,ContextTokens,GeneratedTokens) and Mooncake traces
// (JSON lines: timestamp in ms, input_length, output_length).
absl::StatusOr<std::vector<Planned>> ReadTrace(const ServeFlags& flags) {
  std::ifstream file(flags.trace);
  if (!file) return absl::NotFoundError(absl::StrCat("--trace ", flags.trace, ": cannot open"));
  std::vector<Planned> plan;
  std::string line;
  std::optional<double> first;
  for (int64_t number = 1;
       std::getline(file, line) && static_cast<int32_t>(plan.size()) < flags.num_requests;
       ++number) {
    if (line.empty() || (number == 1 && line.rfind("TIMESTAMP", 0) == 0)) continue;
    Planned p;
    double seconds = 0;
    bool ok = false;
    if (line.front() == '{') {
      const nlohmann::json row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      ok = row.is_object() && row.contains("timestamp") && row["timestamp"].is_number() &&
           row.contains("input_length") && row["input_length"].is_number() &&
           row.contains("output_length") && row["output_length"].is_number();
      if (ok) {
        seconds = row["timestamp"].get<double>() / 1000;
        p.prompt_tokens = row["input_length"].get<int64_t>();
        p.gen_tokens = row["output_length"].get<int64_t>();
      }
    } else {
      int year, month, day, hour, minute;
      long long context, generated;
      ok = std::sscanf(line.c_str(), "%d-%d-%d %d:%d:%lf,%lld,%lld", &year, &month, &day, &hour,
                       &minute, &seconds, &context, &generated) == 8;
      seconds += 60.0 * minute + 3600.0 * hour + 86400.0 * day;
      p.prompt_tokens = context;
      p.gen_tokens = generated;
    }
    if (!ok || p.prompt_tokens < 1 || p.gen_tokens < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--trace ", flags.trace, " line ", number,
                       ": expected time, prompt tokens and generated tokens"));
    }
    if (!first.has_value()) first = seconds;
    p.at_seconds = (seconds - *first) / flags.speedup;
    plan.push_back(p);
  }
  if (plan.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--trace ", flags.trace, ": holds no request"));
  }
  return plan;
}

std::vector<Planned> MakePlan(const ServeFlags& flags) {
  std::vector<Planned> plan(flags.num_requests);
  std::mt19937_64 rng(flags.seed);
  std::exponential_distribution<double> gap(flags.rate > 0 ? flags.rate : 1);
  double at = 0;
  for (Planned& p : plan) {
    p = {at, flags.prompt_tokens, flags.gen_tokens};
    if (flags.rate > 0) at += flags.arrival == "fixed" ? 1 / flags.rate : gap(rng);
  }
  return plan;
}

class LoadGenerator {
 public:
  LoadGenerator(const ServeFlags& flags, std::vector<Planned> plan, int64_t vocab, int64_t max_len)
      : flags_(flags),
        plan_(std::move(plan)),
        vocab_(vocab),
        max_len_(max_len),
        results_(plan_.size()) {
    std::mt19937_64 rng(flags.seed);
    for (int32_t i = 0; i < flags.shared_prefix; ++i) {
      shared_.push_back(static_cast<uint32_t>(rng() % vocab_));
    }
  }

  // Ends when every request has ended. Seconds that it took.
  double Run() {
    const bool open = flags_.rate > 0 || !flags_.trace.empty();
    const int32_t threads = std::min<int32_t>(open ? kMaxInFlight : flags_.concurrency,
                                              static_cast<int32_t>(plan_.size()));
    start_us_ = clock_.NowUs();
    std::vector<std::thread> pool;
    for (int32_t i = 0; i < threads; ++i) {
      pool.emplace_back([this, open] { RunClient(open); });
    }
    ProgressLine progress("requests");
    while (done_.load() < static_cast<int64_t>(plan_.size())) {
      progress.Update(done_.load(), static_cast<int64_t>(plan_.size()), /*bytes=*/false);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    for (std::thread& thread : pool) thread.join();
    return static_cast<double>(clock_.NowUs() - start_us_) / 1e6;
  }

  const std::vector<Measured>& results() const { return results_; }
  int64_t num_late() const { return late_.load(); }
  std::string first_error() const {
    std::lock_guard lock(mutex_);
    return first_error_;
  }

 private:
  void RunClient(bool open) {
    Client client(flags_.target);
    while (true) {
      const int64_t i = next_.fetch_add(1);
      if (i >= static_cast<int64_t>(plan_.size())) return;
      const int64_t due_us = start_us_ + static_cast<int64_t>(plan_[i].at_seconds * 1e6);
      if (open) {
        const int64_t wait_us = due_us - clock_.NowUs();
        if (wait_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
        if (wait_us < -50'000) late_.fetch_add(1);
      }
      Send(&client, i, open ? due_us : clock_.NowUs());
      done_.fetch_add(1);
    }
  }

  void Send(Client* client, int64_t index, int64_t due_us) {
    const Planned& planned = plan_[index];
    v1::GenerateRequest request;
    const int64_t prompt = std::clamp<int64_t>(planned.prompt_tokens, 1, max_len_ - 1);
    std::mt19937_64 rng(flags_.seed * 1'000'003 + index);
    for (int64_t t = 0; t < prompt; ++t) {
      request.add_prompt_ids(t < static_cast<int64_t>(shared_.size())
                                 ? shared_[t]
                                 : static_cast<uint32_t>(rng() % vocab_));
    }
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_temperature(0);
    sampling.set_ignore_eos(true);
    sampling.set_max_tokens(
        static_cast<int32_t>(std::min<int64_t>(planned.gen_tokens, max_len_ - prompt)));
    Measured& m = results_[index];
    int64_t first_us = 0, last_us = 0;
    const absl::Status status =
        client->Generate(request, nullptr, [&](const v1::GenerateResponse& response) {
          if (response.has_delta() && response.delta().token_ids_size() > 0) {
            last_us = clock_.NowUs();
            if (first_us == 0) first_us = last_us;
            m.tokens += response.delta().token_ids_size();
          }
          if (response.has_finished()) {
            m.prompt_tokens = response.finished().usage().prompt_tokens();
            m.cached_tokens = response.finished().usage().cached_tokens();
          }
        });
    m.ok = status.ok();
    if (!status.ok()) {
      std::lock_guard lock(mutex_);
      if (first_error_.empty()) first_error_ = status.ToString();
      return;
    }
    // From when it was due: an open loop counts the waiting that a slow server causes.
    m.ttft_ms = static_cast<double>(first_us - due_us) / 1e3;
    m.total_ms = static_cast<double>(last_us - due_us) / 1e3;
    if (m.tokens > 1) {
      m.tpot_ms = static_cast<double>(last_us - first_us) / 1e3 / static_cast<double>(m.tokens - 1);
    }
  }

  const ServeFlags& flags_;
  const std::vector<Planned> plan_;
  const int64_t vocab_, max_len_;
  const SteadyClock clock_;
  std::vector<uint32_t> shared_;
  std::vector<Measured> results_;  // each written by the thread that sends that request
  int64_t start_us_ = 0;
  std::atomic<int64_t> next_{0}, done_{0}, late_{0};
  mutable std::mutex mutex_;
  std::string first_error_;  // guarded by mutex_
};

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(p * static_cast<double>(values.size() - 1) + 0.5)];
}

void Report(const ServeFlags& flags, const LoadGenerator& load, double seconds) {
  std::vector<double> ttft, tpot, total;
  int64_t tokens = 0, good = 0, prompt = 0, cached = 0, failed = 0;
  for (const Measured& m : load.results()) {
    if (!m.ok) {
      ++failed;
      continue;
    }
    ttft.push_back(m.ttft_ms);
    total.push_back(m.total_ms);
    if (m.tokens > 1) tpot.push_back(m.tpot_ms);
    tokens += m.tokens;
    prompt += m.prompt_tokens;
    cached += m.cached_tokens;
    good += (flags.ttft_target_ms <= 0 || m.ttft_ms <= flags.ttft_target_ms) &&
            (flags.tpot_target_ms <= 0 || m.tpot_ms <= flags.tpot_target_ms);
  }
  auto print = [&](const std::string& name, double value, const std::string& unit) {
    if (flags.json) {
      const nlohmann::ordered_json line = {{"name", name},
                                           {"value", value},
                                           {"unit", unit},
                                           {"settings",
                                            {{"rate", flags.rate},
                                             {"streams", flags.concurrency},
                                             {"prompt_tokens", flags.prompt_tokens},
                                             {"trace", flags.trace}}}};
      std::printf("%s\n", line.dump().c_str());
    } else {
      std::printf("%-24s %12.1f %s\n", name.c_str(), value, unit.c_str());
    }
  };
  print("requests_ok", static_cast<double>(ttft.size()), "requests");
  print("requests_failed", static_cast<double>(failed), "requests");
  print("request_rate", static_cast<double>(ttft.size()) / seconds, "requests/s");
  print("goodput", static_cast<double>(good) / seconds, "requests/s");
  print("decode_tok_s", static_cast<double>(tokens) / seconds, "tokens/s");
  print("prefix_hit_rate",
        prompt > 0 ? 100 * static_cast<double>(cached) / static_cast<double>(prompt) : 0, "%");
  struct Series {
    const char* name;
    const std::vector<double>& values;
  };
  for (const Series& s :
       {Series{"ttft_ms", ttft}, Series{"tpot_ms", tpot}, Series{"total_ms", total}}) {
    for (const auto& [label, p] : {std::pair{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}}) {
      print(absl::StrCat(s.name, "_", label), Percentile(s.values, p), "ms");
    }
  }
  if (load.num_late() > 0) {
    std::fprintf(stderr, "%d requests were sent late: more than %d were in flight\n",
                 static_cast<int>(load.num_late()), kMaxInFlight);
  }
  if (failed > 0) {
    std::fprintf(stderr, "first failure: %s\n", load.first_error().c_str());
  }
}

}  // namespace

int RunBenchServe(const std::vector<std::string>& arguments) {
  ServeFlags flags;
  FlagTable table("quire bench serve", "quire bench serve: load on a running server.", "[flags]");
  table.AddAddress("target", &flags.target, false, "address of a router or worker");
  table.AddDouble("rate", &flags.rate, 0, 1e6,
                  "arrivals a second whatever the server does (open loop); 0 = closed loop");
  table.AddChoice("arrival", &flags.arrival, {"poisson", "fixed"}, "gaps between arrivals");
  table.AddString("trace", &flags.trace,
                  "file with arrivals and lengths (Azure CSV or Mooncake JSON lines)");
  table.AddDouble("speedup", &flags.speedup, 1e-3, 1e6, "replay the trace so many times faster");
  table.AddInt("concurrency", &flags.concurrency, 1, kMaxInFlight, "clients of the closed loop");
  table.AddInt("num-requests", &flags.num_requests, 1, 1'000'000, "requests to send");
  table.AddInt("prompt-tokens", &flags.prompt_tokens, 1, 1'000'000, "tokens of a prompt");
  table.AddInt("gen-tokens", &flags.gen_tokens, 1, 1'000'000, "tokens of an answer");
  table.AddInt("shared-prefix", &flags.shared_prefix, 0, 1'000'000,
               "leading tokens that all prompts share");
  table.AddInt("seed", &flags.seed, 0, INT64_MAX, "of arrivals and prompts");
  table.AddDouble("ttft-target-ms", &flags.ttft_target_ms, 0, 1e9, "for goodput; 0 = none");
  table.AddDouble("tpot-target-ms", &flags.tpot_target_ms, 0, 1e9, "for goodput; 0 = none");
  table.AddBool("json", &flags.json, "one JSON object a line");
  if (const int code = ParseFlagsOrExit(&table, arguments); code >= 0) return code;

  Client client(flags.target);
  absl::Status status = client.WaitReady(10);
  absl::StatusOr<v1::ListModelsResponse> models = v1::ListModelsResponse();
  if (status.ok()) {
    models = client.ListModels();
    status = models.status();
  }
  if (status.ok() && models->models_size() == 0) {
    status = absl::UnavailableError(absl::StrCat(flags.target, " serves no model now"));
  }
  absl::StatusOr<std::vector<Planned>> plan = std::vector<Planned>();
  if (status.ok()) {
    if (flags.trace.empty()) {
      plan = MakePlan(flags);
    } else {
      plan = ReadTrace(flags);
    }
    status = plan.status();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "quire bench: %s\n", std::string(status.message()).c_str());
    return kExitFailed;
  }
  const v1::ModelInfo& model = models->models(0);
  LoadGenerator load(flags, *std::move(plan), model.vocab_size(), model.max_model_len());
  const double seconds = load.Run();
  Report(flags, load, seconds);
  const bool any = std::any_of(load.results().begin(), load.results().end(),
                               [](const Measured& m) { return m.ok; });
  return any ? kExitOk : kExitFailed;
}

}  // namespace quire::cli
