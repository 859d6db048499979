// FlagTable: the configuration of one process: flags, a YAML file and the environment, in one
// table.
//
// Each flag is bound to a variable that holds its default until Parse() sets it. A flag beats the
// file, the file beats the environment, and a value that loses against a different one is reported
// in notes(), never dropped in silence. All wrong values, unknown names and broken files are listed
// at once; nothing is corrected.
//
//   YAML key = flag name with `_` for `-`; environment = QUIRE_ + that in capitals.
//
// Owner: the thread that starts the program. Bound variables must outlive the table.
#ifndef QUIRE_COMMON_CONFIG_FLAGS_H_
#define QUIRE_COMMON_CONFIG_FLAGS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

enum class FlagSource { kDefault, kEnvironment, kFile, kFlag };
const char* FlagSourceName(FlagSource source);  // "default", "environment", "file", "flag"

struct EffectiveValue {
  std::string name;  // without dashes in front
  std::string value;
  FlagSource source;
};

class FlagTable {
 public:
  // Gives the value of an environment variable, or null.
  using Environment = std::function<const char*(const char*)>;

  // `usage` is what follows the program's name in --help, e.g. "[flags]".
  FlagTable(std::string program, std::string description, std::string usage = "[flags]");
  ~FlagTable();
  FlagTable(const FlagTable&) = delete;

  // Registering a name again with the same kind binds one more variable to it (the first text and
  // default count); with another kind it is a bug.
  void AddString(const std::string& name, std::string* value, const std::string& help);
  void AddBool(const std::string& name, bool* value, const std::string& help);
  void AddInt(const std::string& name, int64_t* value, int64_t min, int64_t max,
              const std::string& help);
  void AddInt(const std::string& name, int32_t* value, int32_t min, int32_t max,
              const std::string& help);
  // An integer or "auto", which is 0.
  void AddIntOrAuto(const std::string& name, int32_t* value, int32_t min, int32_t max,
                    const std::string& help);
  void AddDouble(const std::string& name, double* value, double min, double max,
                 const std::string& help);
  void AddChoice(const std::string& name, std::string* value, std::vector<std::string> choices,
                 const std::string& help);
  // "2GiB", "512MiB", "1.5GB", "4096"; "auto" is 0.
  void AddBytes(const std::string& name, int64_t* value, const std::string& help);
  // host:port, port in [0, 65535]; "" is off if `may_be_empty`.
  void AddAddress(const std::string& name, std::string* value, bool may_be_empty,
                  const std::string& help);
  // Comma-separated.
  void AddList(const std::string& name, std::vector<std::string>* value, const std::string& help);

  // A single letter for `name`: AddShort('p', "prompt").
  void AddShort(char letter, const std::string& name);
  // What is no flag goes here in order; without this it is a fault.
  void AllowPositional(std::vector<std::string>* values);
  // Run after parsing; faults that it finds are listed with the rest (one a line).
  void AddCheck(std::function<absl::Status()> check);

  // `args` without the program's name. `--config FILE` is known to every table.
  // Errors: INVALID_ARGUMENT with all faults, one a line. After an error the bound variables hold
  // some mixture; do not use them.
  absl::Status Parse(const std::vector<std::string>& args, const Environment& environment);

  bool help_requested() const { return help_requested_; }
  std::string HelpText() const;
  std::vector<EffectiveValue> Effective() const;
  std::string EffectiveYaml() const;  // with the source as a comment
  const std::vector<std::string>& notes() const { return notes_; }
  bool IsSet(const std::string& name) const;  // by whatever source

 private:
  struct Flag;
  Flag& Add(const std::string& name, const char* kind, const std::string& help);
  Flag* Find(const std::string& name) const;
  std::string Suggestion(const std::string& name) const;
  void Set(Flag& flag, const std::string& value, FlagSource source, const std::string& where);
  void ParseArgs(const std::vector<std::string>& args);
  void ParseFile(const std::string& path);
  void ParseEnvironment(const Environment& environment);

  const std::string program_, description_, usage_;
  std::vector<std::unique_ptr<Flag>> flags_;
  std::vector<std::function<absl::Status()>> checks_;
  std::vector<std::string>* positional_ = nullptr;
  std::string config_path_;
  std::vector<std::string> faults_, notes_;
  bool help_requested_ = false;
};

// Errors: INVALID_ARGUMENT naming the text and the known units.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);
std::string FormatBytes(int64_t bytes);  // "2GiB", "931840"

struct HostPort {
  std::string host;
  int port = 0;
};
// "127.0.0.1:8400", "[::1]:80", "localhost:0". Errors: INVALID_ARGUMENT naming the text.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// The usual start of a main(): parses argv and the environment. Exit code to return at once, or -1
// to go on: --help prints the text (0); faults go to stderr (2).
int ParseFlagsOrExit(FlagTable* table, int argc, char** argv);
int ParseFlagsOrExit(FlagTable* table, const std::vector<std::string>& args);

// What every process has. Bind with AddProcessFlags.
struct ProcessFlags {
  std::string listen;
  std::string metrics_listen;
  std::string log_level = "info";
  std::string cluster_secret_file;
};
void AddProcessFlags(FlagTable* table, ProcessFlags* flags);

// The first line of --cluster-secret-file, "" if the path is "". Errors: NOT_FOUND or
// INVALID_ARGUMENT (shorter than 16 bytes) naming the path, never the content.
absl::StatusOr<std::string> ReadClusterSecret(const std::string& path);

}  // namespace quire

#endif  // QUIRE_COMMON_CONFIG_FLAGS_H_
