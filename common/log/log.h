// Logger: structured lines, `time level message key=value ...`, to stderr.
//
// Thread-safe. Passed to what logs; there is no global one. Values with blanks or quotes are
// quoted; no prompt, answer or secret is ever a value.
#ifndef QUIRE_COMMON_LOG_LOG_H_
#define QUIRE_COMMON_LOG_LOG_H_

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning", "error"; anything else is kInfo (flags are checked before).
LogLevel ParseLogLevel(const std::string& name);

struct LogField {
  const char* key;
  std::string value;
  LogField(const char* k, std::string v) : key(k), value(std::move(v)) {}
  LogField(const char* k, const char* v) : key(k), value(v) {}
  LogField(const char* k, bool v) : key(k), value(v ? "true" : "false") {}
  template <class T>
  LogField(const char* k, T v) : key(k), value(absl::StrCat(v)) {}
};

class Logger {
 public:
  using Sink = std::function<void(LogLevel, const std::string&)>;  // for tests; from any thread

  // To stderr, each line under the name of the process ("router", "worker").
  Logger(const std::string& name, LogLevel level);
  Logger(LogLevel level, Sink sink);
  ~Logger();
  Logger(const Logger&) = delete;

  void Log(LogLevel level, const std::string& message,
           std::initializer_list<LogField> fields = {}) const;
  void Debug(const std::string& m, std::initializer_list<LogField> f = {}) const {
    Log(LogLevel::kDebug, m, f);
  }
  void Info(const std::string& m, std::initializer_list<LogField> f = {}) const {
    Log(LogLevel::kInfo, m, f);
  }
  void Warning(const std::string& m, std::initializer_list<LogField> f = {}) const {
    Log(LogLevel::kWarning, m, f);
  }
  void Error(const std::string& m, std::initializer_list<LogField> f = {}) const {
    Log(LogLevel::kError, m, f);
  }
  LogLevel level() const { return level_; }

 private:
  struct Impl;
  const LogLevel level_;
  const Sink sink_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_LOG_LOG_H_
