#include "cli/request_flags.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace quire::cli {

void RequestFlags::Register(CLI::App& app) {
  app.add_option("--target", target, "address of a running router or worker")
      ->capture_default_str();
  app.add_option("--model", model,
                 "serve this model in this process instead (a directory or .gguf)");
  app.add_option("--worker-flag", worker_flags,
                 "with --model: a flag of quire-worker as name=value, e.g. kv-cache-dtype=fp8");
  app.add_option("--max-tokens", max_tokens, "longest answer (up to the model's length)");
  app.add_option("--temperature", temperature, "0 is greedy (the model's own, or 1)");
  app.add_option("--top-p", top_p, "smallest set of tokens with this probability (1)");
  app.add_option("--top-k", top_k, "only the k likeliest tokens (0 = off)");
  app.add_option("--min-p", min_p, "only tokens this likely relative to the likeliest (0)");
  app.add_option("--repetition-penalty", repetition_penalty, "over prompt and answer (1)");
  app.add_option("--presence-penalty", presence_penalty, "over the answer (0)");
  app.add_option("--frequency-penalty", frequency_penalty, "over the answer (0)");
  app.add_option("--min-tokens", min_tokens, "no end before so many tokens (0)");
  app.add_option("--seed", seed, "the same seed gives the same answer");
  app.add_option("--stop", stop, "end the answer before this text; may be given several times");
  app.add_flag("--ignore-eos", ignore_eos, "go on after the model's end token");
  app.add_flag("--no-thinking", no_thinking,
               "ask the chat template for an answer without thinking");
}

void RequestFlags::FillSampling(v1::SamplingParams* sampling) const {
  if (max_tokens) sampling->set_max_tokens(*max_tokens);
  if (temperature) sampling->set_temperature(*temperature);
  if (top_p) sampling->set_top_p(*top_p);
  if (top_k) sampling->set_top_k(*top_k);
  if (min_p) sampling->set_min_p(*min_p);
  if (repetition_penalty) sampling->set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling->set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling->set_frequency_penalty(*frequency_penalty);
  if (min_tokens) sampling->set_min_tokens(*min_tokens);
  if (seed) sampling->set_seed(*seed);
  if (n) sampling->set_n(*n);
  if (logprobs) sampling->set_logprobs(*logprobs);
  for (const std::string& text : stop) sampling->add_stop(text);
  if (ignore_eos) sampling->set_ignore_eos(true);
}

void RequestFlags::FillTemplateArgs(v1::GenerateRequest* request) const {
  if (!no_thinking) return;
  (*request->mutable_template_args()->mutable_fields())["enable_thinking"].set_bool_value(false);
}

absl::StatusOr<Connection> Connect(const RequestFlags& flags) {
  Connection connection;
  std::string target = flags.target;
  if (!flags.model.empty()) {
    ASSIGN_OR_RETURN(connection.server, LocalServer::Start(flags.model, flags.worker_flags));
    target = connection.server->target();
  }
  connection.client = std::make_unique<Client>(target);
  RETURN_IF_ERROR(connection.client->WaitReady(5));
  return connection;
}

std::string Summary(const v1::Finished& finished) {
  const v1::Usage& usage = finished.usage();
  const v1::Timings& timings = finished.timings();
  std::string text =
      absl::StrFormat("%d prompt tokens (%d cached), %d tokens", usage.prompt_tokens(),
                      usage.cached_tokens(), usage.completion_tokens());
  if (usage.completion_tokens() > 0) {
    text += absl::StrFormat(", first after %.2f s", timings.ttft_ms() / 1000);
  }
  if (usage.completion_tokens() > 1 && timings.decode_ms() > 0) {
    text += absl::StrFormat(", %.1f tokens/s",
                            (usage.completion_tokens() - 1) / timings.decode_ms() * 1000);
  }
  return text;
}

}  // namespace quire::cli
