// quire: the command-line tool.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/commands.h"

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return run();
}
