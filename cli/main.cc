// quire: the command-line tool.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace {

// Names what the chosen subcommand does not know, and what it does.
int UnknownArguments(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) {
    const std::string name = "quire " + sub->get_name();
    for (const std::string& argument : sub->remaining()) {
      std::fprintf(stderr, "%s: unknown argument %s\n", name.c_str(), argument.c_str());
    }
    std::fprintf(stderr, "%s knows:", name.c_str());
    for (const CLI::Option* option : sub->get_options()) {
      std::fprintf(stderr, " %s", option->get_name().c_str());
    }
    std::fprintf(stderr, "\n");
  }
  return quire::cli::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace quire::cli;
  CLI::App app{"Quire: a server for large language models, centred on the KV cache.\n"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "quire " QUIRE_VERSION);
  RunFunction run;
  RegisterUp(app, &run);
  RegisterChat(app, &run);
  RegisterGenerate(app, &run);
  RegisterBench(app, &run);
  RegisterInspect(app, &run);
  const std::vector<CLI::App*> commands = app.get_subcommands(nullptr);
  const bool known = argc <= 1 || argv[1][0] == '-' ||
                     std::any_of(commands.begin(), commands.end(), [&](const CLI::App* command) {
                       return command->get_name() == argv[1];
                     });
  if (!known) {
    std::fprintf(stderr, "quire: unknown command %s, known are", argv[1]);
    for (const CLI::App* command : commands) {
      std::fprintf(stderr, " %s", command->get_name().c_str());
    }
    std::fprintf(stderr, "\n");
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    if (!app.get_subcommands().empty()) return UnknownArguments(app);
    app.exit(error);
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return run();
}
