// quire generate: one prompt, one streamed answer.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/request_flags.h"
#include "cli/terminal.h"

namespace quire::cli {
namespace {

struct GenerateFlags {
  RequestFlags request;
  std::string prompt;
  std::string prompt_file;
  bool chat = false;
  bool json = false;
  bool quiet = false;
};

const char* FinishName(v1::Choice::FinishReason reason) {
  switch (reason) {
    case v1::Choice::STOP:
      return "stop";
    case v1::Choice::LENGTH:
      return "length";
    case v1::Choice::CANCELLED:
      return "cancelled";
    default:
      return "error";
  }
}

void PrintJson(const std::vector<std::string>& texts, const v1::Finished& finished) {
  nlohmann::json out;
  for (int i = 0; i < finished.choices_size(); ++i) {
    const v1::Choice& choice = finished.choices(i);
    out["choices"].push_back({{"index", choice.index()},
                              {"text", texts[choice.index()]},
                              {"finish_reason", FinishName(choice.finish_reason())},
                              {"stop_matched", choice.stop_matched()}});
  }
  out["usage"] = {{"prompt_tokens", finished.usage().prompt_tokens()},
                  {"cached_tokens", finished.usage().cached_tokens()},
                  {"completion_tokens", finished.usage().completion_tokens()}};
  out["timings"] = {{"ttft_ms", finished.timings().ttft_ms()},
                    {"total_ms", finished.timings().total_ms()}};
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

std::optional<std::string> ReadPrompt(const GenerateFlags& flags) {
  if (flags.prompt_file.empty()) return flags.prompt;
  if (flags.prompt_file == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), {});
  }
  std::ifstream file(flags.prompt_file, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

int RunGenerate(const GenerateFlags& flags) {
  const std::optional<std::string> prompt = ReadPrompt(flags);
  if (!prompt.has_value()) {
    std::fprintf(stderr, "quire generate: cannot read --prompt-file %s\n",
                 flags.prompt_file.c_str());
    return kExitFailed;
  }
  Cancellation cancellation;
  InterruptListener interrupts([&] { cancellation.Cancel(); });
  absl::StatusOr<Connection> connection = Connect(flags.request);
  if (!connection.ok()) {
    std::fprintf(stderr, "quire generate: %s\n", connection.status().ToString().c_str());
    return kExitFailed;
  }

  v1::GenerateRequest request;
  if (flags.chat) {
    v1::Message* message = request.add_messages();
    message->set_role("user");
    message->set_content(*prompt);
  } else {
    request.set_prompt(*prompt);
  }
  flags.request.FillSampling(request.mutable_sampling());
  flags.request.FillTemplateArgs(&request);

  const int choices = flags.request.n.value_or(1);
  const bool stream = !flags.json && choices == 1;
  const bool terminal = IsTerminal(STDOUT_FILENO);
  std::vector<std::string> texts(choices > 0 ? choices : 1);
  std::optional<v1::Finished> finished;
  const absl::Status status = connection->client->Generate(
      request, &cancellation, [&](const v1::GenerateResponse& response) {
        if (response.has_finished()) finished = response.finished();
        if (!response.has_delta() || response.delta().index() >= texts.size()) return;
        const std::string& text = response.delta().text();
        texts[response.delta().index()] += text;
        if (!stream) return;
        const std::string shown = terminal ? Printable(text) : text;
        std::fwrite(shown.data(), 1, shown.size(), stdout);
        std::fflush(stdout);
      });
  if (stream && terminal) std::printf("\n");
  if (!status.ok()) {
    std::fprintf(stderr, "quire generate: %s\n", status.ToString().c_str());
    return kExitFailed;
  }
  if (!finished.has_value()) return kExitFailed;
  if (flags.json) {
    PrintJson(texts, *finished);
  } else if (!stream) {
    for (size_t i = 0; i < texts.size(); ++i) {
      std::printf("%s\n%s\n", Bold("[" + std::to_string(i) + "]", STDOUT_FILENO).c_str(),
                  texts[i].c_str());
    }
  }
  if (!flags.quiet && !flags.json) {
    std::fprintf(stderr, "%s\n", Faint("[" + Summary(*finished) + "]", STDERR_FILENO).c_str());
  }
  return kExitOk;
}

}  // namespace

void RegisterGenerate(CLI::App& app, RunFunction* run) {
  CLI::App* generate = app.add_subcommand("generate", "complete a prompt");
  auto flags = std::make_shared<GenerateFlags>();
  flags->request.Register(*generate);
  generate->add_option("-n,--n", flags->request.n, "number of answers (1)");
  auto* prompt = generate->add_option("-p,--prompt", flags->prompt, "the prompt");
  auto* file = generate->add_option("--prompt-file", flags->prompt_file,
                                    "read the prompt from a file, - for standard input");
  prompt->excludes(file);
  generate->add_flag("--chat", flags->chat, "the prompt is a user's message to a chat model");
  generate->add_flag("--json", flags->json,
                     "print one JSON object at the end instead of streaming");
  generate->add_flag("-q,--quiet", flags->quiet, "print the answer only");
  generate->callback([flags, run, prompt, file] {
    if (prompt->count() == 0 && file->count() == 0) {
      throw CLI::RequiredError("-p,--prompt or --prompt-file");
    }
    *run = [flags] { return RunGenerate(*flags); };
  });
}

}  // namespace quire::cli
