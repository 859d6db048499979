// quire bench engine: prefill, decode and time to first token of one worker, in this process and
// without a network. Random prompts of given lengths; end tokens are ignored; greedy.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "common/config/flags.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "kernels/common/isa.h"
#include "worker/backend/cpu_backend.h"
#include "worker/worker.h"

namespace quire::cli {
namespace {

using Seconds = double;

Seconds Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Counts tokens of all running requests and when they came.
class TokenCounter final : public StepSink {
 public:
  void OnStep(v1::StepOutput output) override {
    const Seconds now = Now();
    std::lock_guard lock(mutex_);
    for (const v1::StepDelta& delta : output.deltas()) {
      Stream& stream = streams_[delta.id()];
      if (stream.num_tokens == 0 && delta.delta().token_ids_size() > 0) stream.first_token = now;
      stream.num_tokens += delta.delta().token_ids_size();
      stream.last_token = now;
    }
    for (const v1::StepFinished& finished : output.finished()) {
      Stream& stream = streams_[finished.id()];
      stream.finished = true;
      if (finished.has_error()) error_ = finished.error().message();
    }
    changed_.notify_all();
  }

  struct Stream {
    int64_t num_tokens = 0;
    Seconds first_token = 0, last_token = 0;
    bool finished = false;
  };

  // Waits until `done` holds of all streams. False if a request failed.
  template <class Predicate>
  bool Wait(Predicate done) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !error_.empty() || done(streams_); });
    return error_.empty();
  }
  std::string error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }
  std::map<uint64_t, Stream> streams() const {
    std::lock_guard lock(mutex_);
    return streams_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Stream> streams_;  // guarded by mutex_
  std::string error_;                   // guarded by mutex_
};

struct BenchFlags {
  std::vector<std::string> prompt_tokens = {"512", "2048"};
  std::vector<std::string> context = {"128", "1024"};
  std::vector<std::string> streams = {"1", "16"};
  int32_t gen_tokens = 64;
  int32_t repeat = 3;
  bool cached = false;
  bool profile = false;
  bool json = false;
};

absl::StatusOr<std::vector<int64_t>> ParseNumbers(const std::string& flag,
                                                  const std::vector<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) {
    int64_t number;
    if (!absl::SimpleAtoi(text, &number) || number < 1 || number > 1'000'000) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " has \"", text, "\", expected numbers from 1 to 1000000"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

class EngineBench {
 public:
  EngineBench(BenchFlags flags, Worker* worker) : flags_(std::move(flags)), worker_(worker) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(const auto prompts, ParseNumbers("prompt-tokens", flags_.prompt_tokens));
    ASSIGN_OR_RETURN(const auto contexts, ParseNumbers("context", flags_.context));
    ASSIGN_OR_RETURN(const auto streams, ParseNumbers("streams", flags_.streams));
    RETURN_IF_ERROR(WarmUp());
    for (const int64_t tokens : prompts) RETURN_IF_ERROR(Prefill(tokens));
    for (const int64_t count : streams) {
      for (const int64_t tokens : contexts) RETURN_IF_ERROR(Decode(tokens, count));
    }
    if (flags_.profile) PrintProfile();
    return absl::OkStatus();
  }

 private:
  v1::Submit Request(int64_t prompt_tokens, int64_t max_tokens, bool read_cache, uint64_t seed) {
    v1::Submit submit;
    submit.set_id(next_id_++);
    submit.set_request_id(absl::StrCat("bench-", submit.id()));
    std::mt19937_64 rng(seed);
    const auto vocab = static_cast<uint64_t>(worker_->model().config.vocab);
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      submit.add_prompt_ids(static_cast<uint32_t>(rng() % vocab));
    }
    v1::SamplingParams& sampling = *submit.mutable_sampling();
    sampling.set_max_tokens(static_cast<int32_t>(max_tokens));
    sampling.set_temperature(0);
    sampling.set_ignore_eos(true);
    sampling.set_top_p(1);
    sampling.set_repetition_penalty(1);
    sampling.set_n(1);
    submit.set_read_prefix_cache(read_cache);
    submit.set_store_prefix(read_cache);
    submit.set_credit_tokens(1 << 20);
    submit.set_model_digest(worker_->model().digest);
    return submit;
  }

  // Runs one request to its end; seconds to its first token.
  absl::StatusOr<Seconds> TimeToFirstToken(const v1::Submit& submit) {
    auto sink = std::make_shared<TokenCounter>();
    const Seconds start = Now();
    RETURN_IF_ERROR(worker_->Submit(sink, submit));
    const bool ok = sink->Wait(
        [&](const auto& streams) { return !streams.empty() && streams.begin()->second.finished; });
    if (!ok) return absl::InternalError(sink->error());
    return sink->streams().begin()->second.first_token - start;
  }

  absl::Status WarmUp() { return TimeToFirstToken(Request(64, 8, false, 1)).status(); }

  absl::Status Prefill(int64_t tokens) {
    std::vector<double> rate, ttft_ms, cached_ms;
    for (int32_t i = 0; i < flags_.repeat; ++i) {
      ASSIGN_OR_RETURN(const Seconds cold, TimeToFirstToken(Request(tokens, 1, false, 100 + i)));
      rate.push_back(static_cast<double>(tokens) / cold);
      ttft_ms.push_back(cold * 1000);
      if (flags_.cached) {
        // The first fills the cache, the second finds all but the last block.
        const uint64_t seed = 10'000 + i;
        RETURN_IF_ERROR(TimeToFirstToken(Request(tokens, 1, true, seed)).status());
        ASSIGN_OR_RETURN(const Seconds warm, TimeToFirstToken(Request(tokens, 1, true, seed)));
        cached_ms.push_back(warm * 1000);
      }
    }
    Report("prefill_tok_s", "tokens/s", rate, {{"prompt_tokens", tokens}});
    Report("ttft_ms", "ms", ttft_ms, {{"prompt_tokens", tokens}});
    if (flags_.cached) {
      Report("ttft_ms", "ms", cached_ms, {{"prompt_tokens", tokens}, {"prefix", "cached"}});
    }
    return absl::OkStatus();
  }

  // All streams decode together: the clock runs from the last one's first token until each has
  // made gen_tokens more.
  absl::Status Decode(int64_t context, int64_t count) {
    std::vector<double> rate, tpot_ms;
    for (int32_t i = 0; i < flags_.repeat; ++i) {
      auto sink = std::make_shared<TokenCounter>();
      const int64_t room = int64_t{worker_->served_model()->info.max_model_len()} - context;
      std::vector<uint64_t> ids;
      for (int64_t s = 0; s < count; ++s) {
        v1::Submit submit = Request(context, room, false, 1000 + s);
        ids.push_back(submit.id());
        RETURN_IF_ERROR(worker_->Submit(sink, submit));
      }
      std::map<uint64_t, TokenCounter::Stream> begin, end;
      auto all_started = [&](const auto& streams) {
        return static_cast<int64_t>(streams.size()) == count &&
               std::all_of(streams.begin(), streams.end(),
                           [](const auto& s) { return s.second.num_tokens > 0; });
      };
      auto all_made = [&](const auto& streams) {
        return std::all_of(streams.begin(), streams.end(), [&](const auto& s) {
          return s.second.finished ||
                 s.second.num_tokens >= begin.at(s.first).num_tokens + flags_.gen_tokens;
        });
      };
      bool ok = sink->Wait(all_started);
      if (ok) begin = sink->streams();
      ok = ok && sink->Wait(all_made);
      if (ok) end = sink->streams();
      worker_->CancelAll(sink.get(), absl::CancelledError("bench"));
      while (worker_->num_requests() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!ok) return absl::InternalError(sink->error());

      Seconds first = 0, last = 0;
      int64_t tokens = 0;
      for (const auto& [id, stream] : begin) {
        first = std::max(first, stream.last_token);
        last = std::max(last, end.at(id).last_token);
        tokens += end.at(id).num_tokens - stream.num_tokens;
      }
      rate.push_back(static_cast<double>(tokens) / (last - first));
      tpot_ms.push_back((last - first) * 1000 * static_cast<double>(count) /
                        static_cast<double>(tokens));
    }
    Report("decode_tok_s", "tokens/s", rate, {{"context", context}, {"streams", count}});
    Report("tpot_ms", "ms", tpot_ms, {{"context", context}, {"streams", count}});
    return absl::OkStatus();
  }

  void Report(const std::string& name, const std::string& unit, std::vector<double> values,
              nlohmann::ordered_json settings) {
    std::sort(values.begin(), values.end());
    const double median = values[values.size() / 2];
    const ModelConfig& config = worker_->model().config;
    if (flags_.json) {
      settings["model"] = config.name;
      settings["weights"] = worker_->model().weights;
      settings["kv"] = KvDtypeName(worker_->backend().kv_layout().dtype);
      settings["threads"] = threads();
      settings["isa"] = IsaName(DetectIsa());
      const nlohmann::ordered_json line = {
          {"name", name}, {"value", median}, {"unit", unit}, {"settings", settings}};
      std::printf("%s\n", line.dump().c_str());
    } else {
      std::string what;
      for (const auto& [key, value] : settings.items()) {
        absl::StrAppend(&what, what.empty() ? "" : ", ", key, " ",
                        value.is_string() ? value.get<std::string>() : value.dump());
      }
      std::printf("%-14s %-36s %10.1f %-9s (%.1f to %.1f)\n", name.c_str(), what.c_str(), median,
                  unit.c_str(), values.front(), values.back());
    }
    std::fflush(stdout);
  }

  int threads() const {
    return worker_->options().threads > 0
               ? worker_->options().threads
               : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }

  void PrintProfile() {
    auto* cpu = dynamic_cast<CpuBackend*>(&worker_->backend());
    if (cpu == nullptr) return;
    const StepProfile& p = cpu->profile();
    const std::pair<const char*, double> rows[] = {{"embedding", p.embed},
                                                   {"norms", p.norm},
                                                   {"qkv", p.qkv},
                                                   {"rope", p.rope},
                                                   {"kv write", p.kv_write},
                                                   {"attention", p.attention},
                                                   {"o", p.o},
                                                   {"gate_up", p.gate_up},
                                                   {"swiglu", p.swiglu},
                                                   {"down", p.down},
                                                   {"head", p.head},
                                                   {"sampling", p.sample}};
    double sum = 0;
    for (const auto& row : rows) sum += row.second;
    std::fprintf(stderr, "time in kernels, whole run:\n");
    for (const auto& [name, seconds] : rows) {
      std::fprintf(stderr, "  %-10s %8.3f s %5.1f %%\n", name, seconds, 100 * seconds / sum);
    }
  }

  const BenchFlags flags_;
  Worker* const worker_;
  uint64_t next_id_ = 1;
};

}  // namespace

int RunBenchEngine(const std::vector<std::string>& arguments) {
  FlagTable table("quire bench engine", "quire bench engine: speed of one worker, in this process.",
                  "--model PATH [flags of quire-worker]");
  WorkerOptions options;
  BenchFlags flags;
  table.AddList("prompt-tokens", &flags.prompt_tokens,
                "prompt lengths for prefill, comma-separated");
  table.AddList("context", &flags.context, "context lengths for decode, comma-separated");
  table.AddList("streams", &flags.streams, "numbers of streams for decode, comma-separated");
  table.AddInt("gen-tokens", &flags.gen_tokens, 1, 100'000, "tokens a stream while the clock runs");
  table.AddInt("repeat", &flags.repeat, 1, 1000, "runs of each figure; the median is reported");
  table.AddBool("cached", &flags.cached, "also time to first token with the prefix cached");
  table.AddBool("profile", &flags.profile, "print where the time in kernels went");
  table.AddBool("json", &flags.json, "one JSON object a line");
  AddWorkerFlags(&table, &options);
  if (const int code = ParseFlagsOrExit(&table, arguments); code >= 0) return code;
  const Logger log("quire", LogLevel::kWarning);
  MetricsPage page;
  ProgressLine progress("loading " + options.model);
  auto worker = Worker::Create(options, &log, &page, [&](int64_t done, int64_t total) {
    progress.Update(done, total, /*bytes=*/true);
  });
  progress.Clear();
  absl::Status status = worker.status();
  if (status.ok()) status = EngineBench(flags, worker->get()).Run();
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "quire bench: %s\n", std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace quire::cli
