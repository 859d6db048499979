// quire chat: a conversation on the terminal.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <optional>
#include <string>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/request_flags.h"
#include "cli/terminal.h"

namespace quire::cli {
namespace {

constexpr char kHelp[] =
    "/reset    forget the conversation\n"
    "/system X set the system prompt and start anew\n"
    "/help     this list\n"
    "/exit     leave (also Ctrl-D); Ctrl-C stops an answer\n";

struct ChatFlags {
  RequestFlags request;
  std::string system;
  std::string message;  // one question, then leave
};

class Chat {
 public:
  Chat(const ChatFlags& flags, Client* client) : flags_(flags), client_(client) { Reset(); }

  void Reset() {
    request_.clear_messages();
    if (!system_.empty()) {
      v1::Message* message = request_.add_messages();
      message->set_role("system");
      message->set_content(system_);
      message->set_cacheable(true);
    }
  }
  void set_system(const std::string& system) {
    system_ = system;
    Reset();
  }

  // Asks, streams the answer and remembers both; a question that failed is forgotten.
  absl::Status Ask(const std::string& question, Cancellation* cancellation) {
    flags_.request.FillSampling(request_.mutable_sampling());
    flags_.request.FillTemplateArgs(&request_);
    v1::Message* message = request_.add_messages();
    message->set_role("user");
    message->set_content(question);

    std::string answer;
    std::optional<v1::Finished> finished;
    const absl::Status status =
        client_->Generate(request_, cancellation, [&](const v1::GenerateResponse& response) {
          if (response.has_delta()) {
            answer += response.delta().text();
            std::fputs(Printable(response.delta().text()).c_str(), stdout);
            std::fflush(stdout);
          }
          if (response.has_finished()) finished = response.finished();
        });
    std::fputs("\n", stdout);
    std::fflush(stdout);
    if (!status.ok() && status.code() != absl::StatusCode::kCancelled) {
      request_.mutable_messages()->RemoveLast();
      return status;
    }
    v1::Message* reply = request_.add_messages();
    reply->set_role("assistant");
    reply->set_content(answer);
    const std::string summary = finished ? Summary(*finished) : "stopped";
    std::fprintf(stderr, "%s\n", Faint("[" + summary + "]", STDERR_FILENO).c_str());
    return absl::OkStatus();
  }

 private:
  const ChatFlags& flags_;
  Client* client_;
  std::string system_ = flags_.system;
  v1::GenerateRequest request_;
};

int Converse(Chat* chat, Cancellation* cancellation, std::atomic<bool>* answering) {
  LineReader reader;
  std::printf("%s",
              Faint("Type a question; /help lists what else there is.\n", STDOUT_FILENO).c_str());
  while (true) {
    const std::optional<std::string> line = reader.Read("> ");
    if (!line.has_value() || *line == "/exit" || *line == "/quit") break;
    if (line->empty()) continue;
    if (*line == "/help") {
      std::fputs(kHelp, stdout);
    } else if (*line == "/reset") {
      chat->Reset();
    } else if (line->rfind("/system ", 0) == 0) {
      chat->set_system(line->substr(8));
    } else if (line->front() == '/') {
      std::printf("unknown command %s\n%s", line->c_str(), kHelp);
    } else {
      cancellation->Reset();
      answering->store(true);
      const absl::Status status = chat->Ask(*line, cancellation);
      answering->store(false);
      if (!status.ok()) std::fprintf(stderr, "quire chat: %s\n", status.ToString().c_str());
    }
  }
  return kExitOk;
}

int RunChat(const ChatFlags& flags) {
  Cancellation cancellation;
  std::atomic<bool> answering{!flags.message.empty()};
  // Before any thread of gRPC: they inherit the blocked SIGINT.
  InterruptListener interrupts([&] {
    if (answering.load()) {
      cancellation.Cancel();
    } else {
      std::fprintf(stderr, "\n%s", Faint("(/exit or Ctrl-D leaves)\n", STDERR_FILENO).c_str());
    }
  });
  absl::StatusOr<Connection> connection = Connect(flags.request);
  if (!connection.ok()) {
    std::fprintf(stderr, "quire chat: %s\n", connection.status().ToString().c_str());
    return kExitFailed;
  }
  Chat chat(flags, connection->client.get());
  if (flags.message.empty()) return Converse(&chat, &cancellation, &answering);
  const absl::Status status = chat.Ask(flags.message, &cancellation);
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "quire chat: %s\n", status.ToString().c_str());
  return kExitFailed;
}

}  // namespace

void RegisterChat(CLI::App& app, RunFunction* run) {
  CLI::App* chat = app.add_subcommand("chat", "talk with a model on the terminal");
  auto flags = std::make_shared<ChatFlags>();
  flags->request.Register(*chat);
  chat->add_option("--system", flags->system, "system prompt");
  chat->add_option("-m,--message", flags->message, "ask this one question and leave");
  chat->callback([flags, run] { *run = [flags] { return RunChat(*flags); }; });
}

}  // namespace quire::cli
