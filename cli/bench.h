// The benches of `quire bench`. Each parses its own flags and returns an exit code.
#ifndef QUIRE_CLI_BENCH_H_
#define QUIRE_CLI_BENCH_H_

#include <string>
#include <vector>

namespace quire::cli {

int RunBenchEngine(const std::vector<std::string>& arguments);
int RunBenchServe(const std::vector<std::string>& arguments);

}  // namespace quire::cli

#endif  // QUIRE_CLI_BENCH_H_
