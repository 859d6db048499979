// The subcommands of `quire`. Each registers its flags and sets `*run` when it was chosen.
#ifndef QUIRE_CLI_COMMANDS_H_
#define QUIRE_CLI_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>

namespace quire::cli {

// Exit codes of the contract.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

using RunFunction = std::function<int()>;

void RegisterUp(CLI::App& app, RunFunction* run);
void RegisterChat(CLI::App& app, RunFunction* run);
void RegisterGenerate(CLI::App& app, RunFunction* run);
void RegisterInspect(CLI::App& app, RunFunction* run);
void RegisterBench(CLI::App& app, RunFunction* run);

}  // namespace quire::cli

#endif  // QUIRE_CLI_COMMANDS_H_
