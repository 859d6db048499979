#include "cli/bench.h"

#include <cstdio>

#include "cli/commands.h"

namespace quire::cli {

void RegisterBench(CLI::App& app, RunFunction* run) {
  CLI::App* bench = app.add_subcommand("bench", "measure an engine or a running server");
  bench->require_subcommand(1);
  struct Kind {
    const char* name;
    const char* help;
    int (*run)(const std::vector<std::string>&);
  };
  for (const Kind& kind :
       {Kind{"engine", "one worker, in this process (--help lists the flags)", RunBenchEngine},
        Kind{"serve", "a running server, over gRPC (--help lists the flags)", RunBenchServe}}) {
    CLI::App* sub = bench->add_subcommand(kind.name, kind.help);
    sub->set_help_flag();
    sub->prefix_command();
    sub->callback([sub, run, function = kind.run] {
      *run = [arguments = sub->remaining(), function] { return function(arguments); };
    });
  }
}

}  // namespace quire::cli
