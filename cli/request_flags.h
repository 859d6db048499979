// Flags that `quire chat` and `quire generate` share: where the server is and how tokens are
// picked.
#ifndef QUIRE_CLI_REQUEST_FLAGS_H_
#define QUIRE_CLI_REQUEST_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/local_server.h"

namespace quire::cli {

struct RequestFlags {
  std::string target = "127.0.0.1:8400";
  std::string model;  // a path: serve it in this process instead of asking `target`
  std::vector<std::string> worker_flags;  // "name=value" for that
  std::optional<int> max_tokens, top_k, n, min_tokens, logprobs;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool no_thinking = false;

  void Register(CLI::App& app);
  void FillSampling(v1::SamplingParams* sampling) const;
  void FillTemplateArgs(v1::GenerateRequest* request) const;
};

// A client of the server that the flags name, which is started in this process if they name a
// model.
struct Connection {
  std::unique_ptr<LocalServer> server;  // null if a running server is asked
  std::unique_ptr<Client> client;
};
absl::StatusOr<Connection> Connect(const RequestFlags& flags);

// "12 prompt tokens (0 cached), 30 tokens, first after 0.12 s, 25.1 tokens/s".
std::string Summary(const v1::Finished& finished);

}  // namespace quire::cli

#endif  // QUIRE_CLI_REQUEST_FLAGS_H_
