#include "common/config/flags.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace quire {
namespace {

std::string UnderscoreName(const std::string& name) {
  std::string key = name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

std::string EnvironmentName(const std::string& name) {
  std::string key = "QUIRE_" + UnderscoreName(name);
  for (char& c : key) c = (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
  return key;
}

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> items;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = text.find(',', begin);
    if (end == std::string::npos) end = text.size();
    std::string item = text.substr(begin, end - begin);
    item.erase(0, item.find_first_not_of(" \t"));
    item.erase(item.find_last_not_of(" \t") + 1);
    if (!item.empty()) items.push_back(std::move(item));
    begin = end + 1;
  }
  return items;
}

template <class T>
bool ParseNumber(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [ptr, ec] = std::from_chars(text.data(), end, *value);
  return ec == std::errc() && ptr == end;
}

// The setter's answer: "" or what the value must be.
using Setter = std::function<std::string(const std::string&)>;

template <class T>
Setter IntSetter(T* value, T min, T max, bool may_be_auto) {
  return [=](const std::string& text) -> std::string {
    if (may_be_auto && text == "auto") {
      *value = 0;
      return "";
    }
    int64_t parsed = 0;
    if (!ParseNumber(text, &parsed) || parsed < min || parsed > max) {
      return absl::StrCat("must be ", may_be_auto ? "auto or " : "", "an integer from ", min,
                          " to ", max);
    }
    *value = static_cast<T>(parsed);
    return "";
  };
}

// Edits that turn a into b, for "did you mean".
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string Quote(const std::string& text) {
  const bool plain =
      !text.empty() && text.find_first_of(" \t\n#:'\"[]{}&*!|>%@`,") == std::string::npos;
  if (plain) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

const char* FlagSourceName(FlagSource source) {
  switch (source) {
    case FlagSource::kDefault:
      return "default";
    case FlagSource::kEnvironment:
      return "environment";
    case FlagSource::kFile:
      return "file";
    case FlagSource::kFlag:
      return "flag";
  }
  return "?";
}

struct FlagTable::Flag {
  std::string name;
  std::string kind;  // shown in --help
  std::string help;
  std::string default_text;
  std::string text;  // the value in force, as given
  FlagSource source = FlagSource::kDefault;
  char letter = 0;
  bool is_bool = false;
  std::vector<Setter> setters;
};

FlagTable::FlagTable(std::string program, std::string description, std::string usage)
    : program_(std::move(program)), description_(std::move(description)), usage_(std::move(usage)) {
  AddString("config", &config_path_, "YAML file with any of these flags, `_` for `-` in names");
}
FlagTable::~FlagTable() = default;

FlagTable::Flag* FlagTable::Find(const std::string& name) const {
  for (const auto& flag : flags_) {
    if (flag->name == name) return flag.get();
  }
  return nullptr;
}

FlagTable::Flag& FlagTable::Add(const std::string& name, const char* kind,
                                const std::string& help) {
  if (Flag* known = Find(name)) {
    QUIRE_CHECK(known->kind == kind);
    return *known;
  }
  auto flag = std::make_unique<Flag>();
  flag->name = name;
  flag->kind = kind;
  flag->help = help;
  flags_.push_back(std::move(flag));
  return *flags_.back();
}

// Sets the default's text on first registration and adds the setter.
#define QUIRE_BIND_(flag, default_value, setter)                       \
  do {                                                                 \
    if ((flag).setters.empty()) (flag).default_text = (default_value); \
    (flag).text = (flag).default_text;                                 \
    (flag).setters.push_back(setter);                                  \
  } while (false)

void FlagTable::AddString(const std::string& name, std::string* value, const std::string& help) {
  Flag& flag = Add(name, "TEXT", help);
  QUIRE_BIND_(flag, *value, [value](const std::string& text) -> std::string {
    *value = text;
    return "";
  });
}

void FlagTable::AddBool(const std::string& name, bool* value, const std::string& help) {
  Flag& flag = Add(name, "true|false", help);
  flag.is_bool = true;
  QUIRE_BIND_(flag, *value ? "true" : "false", [value](const std::string& text) -> std::string {
    if (text != "true" && text != "false") return "must be true or false";
    *value = text == "true";
    return "";
  });
}

void FlagTable::AddInt(const std::string& name, int64_t* value, int64_t min, int64_t max,
                       const std::string& help) {
  Flag& flag = Add(name, "N", help);
  QUIRE_BIND_(flag, absl::StrCat(*value), (IntSetter<int64_t>(value, min, max, false)));
}

void FlagTable::AddInt(const std::string& name, int32_t* value, int32_t min, int32_t max,
                       const std::string& help) {
  Flag& flag = Add(name, "N", help);
  QUIRE_BIND_(flag, absl::StrCat(*value), (IntSetter<int32_t>(value, min, max, false)));
}

void FlagTable::AddIntOrAuto(const std::string& name, int32_t* value, int32_t min, int32_t max,
                             const std::string& help) {
  Flag& flag = Add(name, "N|auto", help);
  QUIRE_BIND_(flag, *value == 0 ? "auto" : absl::StrCat(*value),
              (IntSetter<int32_t>(value, min, max, true)));
}

void FlagTable::AddDouble(const std::string& name, double* value, double min, double max,
                          const std::string& help) {
  Flag& flag = Add(name, "X", help);
  QUIRE_BIND_(flag, absl::StrCat(*value), [=](const std::string& text) -> std::string {
    double parsed = 0;
    if (!ParseNumber(text, &parsed) || !(parsed >= min && parsed <= max)) {
      return absl::StrCat("must be a number from ", min, " to ", max);
    }
    *value = parsed;
    return "";
  });
}

void FlagTable::AddChoice(const std::string& name, std::string* value,
                          std::vector<std::string> choices, const std::string& help) {
  const std::string kind = absl::StrJoin(choices, "|");
  Flag& flag = Add(name, kind.c_str(), help);
  QUIRE_BIND_(flag, *value, ([value, choices](const std::string& text) -> std::string {
                if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
                  return "must be one of " + absl::StrJoin(choices, ", ");
                }
                *value = text;
                return "";
              }));
}

void FlagTable::AddBytes(const std::string& name, int64_t* value, const std::string& help) {
  Flag& flag = Add(name, "BYTES|auto", help);
  QUIRE_BIND_(flag, *value == 0 ? "auto" : FormatBytes(*value),
              [value](const std::string& text) -> std::string {
                if (text == "auto") {
                  *value = 0;
                  return "";
                }
                const absl::StatusOr<int64_t> bytes = ParseBytes(text);
                if (!bytes.ok() || *bytes == 0) {
                  return "must be auto or a size above 0 such as 2GiB, 512MiB or 4096";
                }
                *value = *bytes;
                return "";
              });
}

void FlagTable::AddAddress(const std::string& name, std::string* value, bool may_be_empty,
                           const std::string& help) {
  Flag& flag = Add(name, "HOST:PORT", help);
  QUIRE_BIND_(flag, *value, ([value, may_be_empty](const std::string& text) -> std::string {
                if (!(text.empty() && may_be_empty) && !ParseHostPort(text).ok()) {
                  return "must be HOST:PORT with a port from 0 to 65535 (0 = any that is free)";
                }
                *value = text;
                return "";
              }));
}

void FlagTable::AddList(const std::string& name, std::vector<std::string>* value,
                        const std::string& help) {
  Flag& flag = Add(name, "A,B,...", help);
  QUIRE_BIND_(flag, absl::StrJoin(*value, ","), [value](const std::string& text) -> std::string {
    *value = SplitList(text);
    return "";
  });
}
#undef QUIRE_BIND_

void FlagTable::AddShort(char letter, const std::string& name) {
  Flag* flag = Find(name);
  QUIRE_CHECK(flag != nullptr);
  flag->letter = letter;
}

void FlagTable::AllowPositional(std::vector<std::string>* values) { positional_ = values; }

void FlagTable::AddCheck(std::function<absl::Status()> check) {
  checks_.push_back(std::move(check));
}

std::string FlagTable::Suggestion(const std::string& name) const {
  const Flag* best = nullptr;
  size_t best_distance = 3;  // further away is a guess that does not help
  for (const auto& flag : flags_) {
    const size_t distance = EditDistance(name, flag->name);
    if (distance < best_distance) {
      best = flag.get();
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : absl::StrCat(" (did you mean --", best->name, "?)");
}

void FlagTable::Set(Flag& flag, const std::string& value, FlagSource source,
                    const std::string& where) {
  if (flag.source > source) {  // something stronger has set it already
    if (flag.text != value) {
      notes_.push_back(absl::StrCat(
          where, "=", value, " has no effect: ", FlagSourceName(flag.source), " says ", flag.text));
    }
    return;
  }
  for (const Setter& setter : flag.setters) {
    const std::string fault = setter(value);
    if (!fault.empty()) {
      faults_.push_back(absl::StrCat(where, " is '", value, "': ", fault));
      break;
    }
  }
  flag.text = value;
  flag.source = source;
}

void FlagTable::ParseArgs(const std::vector<std::string>& args) {
  bool only_positional = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (only_positional || arg.size() < 2 || arg[0] != '-') {
      if (positional_ != nullptr) {
        positional_->push_back(arg);
      } else {
        faults_.push_back(absl::StrCat("unexpected argument '", arg, "'"));
      }
      continue;
    }
    if (arg == "--") {
      only_positional = true;
      continue;
    }
    if (arg == "--help" || arg == "-h") {
      help_requested_ = true;
      continue;
    }
    Flag* flag = nullptr;
    std::string name;
    std::optional<std::string> value;
    if (arg[1] == '-') {
      const size_t equals = arg.find('=');
      name = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
      if (equals != std::string::npos) value = arg.substr(equals + 1);
      flag = Find(name);
    } else {
      for (const auto& candidate : flags_) {
        if (candidate->letter == arg[1]) flag = candidate.get();
      }
      if (arg.size() > 2) value = arg.substr(2);
    }
    if (flag == nullptr) {
      const std::string shown = arg[1] == '-' ? "--" + name : arg.substr(0, 2);
      faults_.push_back(absl::StrCat("unknown flag ", shown, Suggestion(name)));
      // Its value, if it has one, is no fault of its own.
      if (!value && i + 1 < args.size() && (args[i + 1].empty() || args[i + 1][0] != '-')) ++i;
      continue;
    }
    if (!value && flag->is_bool) {
      const bool takes_next =
          i + 1 < args.size() && (args[i + 1] == "true" || args[i + 1] == "false");
      value = takes_next ? args[++i] : "true";
    }
    if (!value) {
      if (i + 1 >= args.size() || args[i + 1].rfind("--", 0) == 0) {
        faults_.push_back(absl::StrCat("--", flag->name, " needs a value (", flag->kind, ")"));
        continue;
      }
      value = args[++i];
    }
    Set(*flag, *value, FlagSource::kFlag, "--" + flag->name);
  }
}

void FlagTable::ParseFile(const std::string& path) {
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (root.IsNull()) return;
    if (!root.IsMap()) {
      faults_.push_back(absl::StrCat(path, ": must hold `key: value` lines"));
      return;
    }
    for (const auto& entry : root) {
      const std::string key = entry.first.as<std::string>();
      const std::string where = absl::StrCat(path, ":", entry.first.Mark().line + 1, ": ", key);
      std::string name = key;
      std::replace(name.begin(), name.end(), '_', '-');
      Flag* flag = Find(name);
      if (flag == nullptr || name == "config" || key.find('-') != std::string::npos) {
        faults_.push_back(absl::StrCat(where, ": unknown key", Suggestion(name)));
        continue;
      }
      if (entry.second.IsScalar()) {
        Set(*flag, entry.second.as<std::string>(), FlagSource::kFile, where);
      } else if (entry.second.IsSequence()) {
        std::vector<std::string> items;
        for (const auto& item : entry.second) items.push_back(item.as<std::string>());
        Set(*flag, absl::StrJoin(items, ","), FlagSource::kFile, where);
      } else {
        faults_.push_back(absl::StrCat(where, ": needs a value (", flag->kind, ")"));
      }
    }
  } catch (const std::exception& error) {
    faults_.push_back(absl::StrCat("--config ", path, ": ", error.what()));
  }
}

void FlagTable::ParseEnvironment(const Environment& environment) {
  for (const auto& flag : flags_) {
    const std::string name = EnvironmentName(flag->name);
    if (const char* value = environment(name.c_str())) {
      Set(*flag, value, FlagSource::kEnvironment, name);
    }
  }
}

absl::Status FlagTable::Parse(const std::vector<std::string>& args,
                              const Environment& environment) {
  faults_.clear();
  notes_.clear();
  ParseArgs(args);
  if (help_requested_) return absl::OkStatus();
  if (config_path_.empty()) {
    if (const char* path = environment("QUIRE_CONFIG")) config_path_ = path;
  }
  if (!config_path_.empty()) ParseFile(config_path_);
  ParseEnvironment(environment);
  for (const auto& check : checks_) {
    const absl::Status status = check();
    if (!status.ok()) faults_.push_back(std::string(status.message()));
  }
  if (faults_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults_, "\n"));
}

std::string FlagTable::HelpText() const {
  std::string out = absl::StrCat(description_, "\n\nusage: ", program_, " ", usage_, "\n\n");
  for (const auto& flag : flags_) {
    std::string head = absl::StrCat("  --", flag->name, " ", flag->kind);
    if (flag->letter != 0) {
      head = absl::StrCat("  -", std::string(1, flag->letter), ", --", flag->name, " ", flag->kind);
    }
    out += head;
    const size_t column = 34;
    if (head.size() + 2 > column) {
      out += "\n" + std::string(column, ' ');
    } else {
      out += std::string(column - head.size(), ' ');
    }
    // Wrapped at 100 columns.
    std::string text = flag->help;
    text += flag->default_text.empty() ? " (default: none)"
                                       : absl::StrCat(" (default: ", flag->default_text, ")");
    size_t width = 100 - column;
    while (text.size() > width) {
      size_t cut = text.rfind(' ', width);
      if (cut == std::string::npos || cut == 0) cut = width;
      out += text.substr(0, cut) + "\n" + std::string(column, ' ');
      text = text.substr(cut + (text[cut] == ' ' ? 1 : 0));
    }
    out += text + "\n";
  }
  const char* indent = "  ";
  out += absl::StrCat(indent, "-h, --help", std::string(22, ' '), "this text\n\n",
                      "Flags beat the --config file, the file beats the environment (QUIRE_ + the "
                      "flag's name in capitals,\n`_` for `-`). Exit codes: 0 done, 1 failed, 2 "
                      "usage.\n");
  return out;
}

std::vector<EffectiveValue> FlagTable::Effective() const {
  std::vector<EffectiveValue> values;
  for (const auto& flag : flags_) values.push_back({flag->name, flag->text, flag->source});
  return values;
}

std::string FlagTable::EffectiveYaml() const {
  std::string out;
  for (const auto& flag : flags_) {
    out += absl::StrCat(UnderscoreName(flag->name), ": ", Quote(flag->text), "  # ",
                        FlagSourceName(flag->source), "\n");
  }
  return out;
}

bool FlagTable::IsSet(const std::string& name) const {
  const Flag* flag = Find(name);
  return flag != nullptr && flag->source != FlagSource::kDefault;
}

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  size_t digits = 0;
  while (digits < text.size() &&
         ((text[digits] >= '0' && text[digits] <= '9') || text[digits] == '.')) {
    ++digits;
  }
  const std::string number(text.substr(0, digits));
  std::string unit(text.substr(digits));
  unit.erase(0, unit.find_first_not_of(' '));
  static constexpr struct {
    const char* name;
    double factor;
  } kUnits[] = {{"", 1},         {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3},     {"KB", 1e3},
                {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  double value = 0;
  if (ParseNumber(number, &value)) {
    for (const auto& known : kUnits) {
      const double bytes = value * known.factor;
      if (unit == known.name && bytes < 0x1p62) return static_cast<int64_t>(std::floor(bytes));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text),
                   "' is no size: a number and B, KiB, MiB, GiB, TiB, kB, "
                   "MB, GB or TB"));
}

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kNames[] = {"", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrCat(bytes, kNames[unit]);
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort out;
  if (colon != std::string::npos && colon > 0 && ParseNumber(text.substr(colon + 1), &out.port) &&
      out.port >= 0 && out.port <= 65535) {
    out.host = text.substr(0, colon);
    const bool bracketed = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
    if (bracketed) out.host = out.host.substr(1, out.host.size() - 2);
    if (bracketed || out.host.find(':') == std::string::npos) return out;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no HOST:PORT"));
}

int ParseFlagsOrExit(FlagTable* table, int argc, char** argv) {
  return ParseFlagsOrExit(table, std::vector<std::string>(argv + 1, argv + argc));
}

int ParseFlagsOrExit(FlagTable* table, const std::vector<std::string>& args) {
  const absl::Status status =
      table->Parse(args, [](const char* name) -> const char* { return std::getenv(name); });
  if (table->help_requested()) {
    std::fputs(table->HelpText().c_str(), stdout);
    return 0;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "wrong configuration:\n%s\n--help lists the flags.\n",
                 std::string(status.message()).c_str());
    return 2;
  }
  return -1;
}

void AddProcessFlags(FlagTable* table, ProcessFlags* flags) {
  table->AddAddress("listen", &flags->listen, false, "gRPC address; port 0 = any, printed");
  table->AddAddress("metrics-listen", &flags->metrics_listen, true,
                    "HTTP address of /metrics, /healthz, /readyz; empty = off");
  table->AddChoice("log-level", &flags->log_level, {"debug", "info", "warning", "error"},
                   "the least that is logged");
  table->AddString("cluster-secret-file", &flags->cluster_secret_file,
                   "file with the secret that tenants' cache keys are salted with; the same on "
                   "all routers and workers; empty = no salt");
}

absl::StatusOr<std::string> ReadClusterSecret(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  if (!file)
    return absl::NotFoundError(absl::StrCat("--cluster-secret-file ", path, ": unreadable"));
  std::string line;
  std::getline(file, line);
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  if (line.size() < 16) {
    return absl::InvalidArgumentError(absl::StrCat("--cluster-secret-file ", path,
                                                   ": the first line has ", line.size(),
                                                   " bytes, at least 16 are needed"));
  }
  return line;
}

}  // namespace quire
