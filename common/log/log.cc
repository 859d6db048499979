#include "common/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace quire {
namespace {

std::string Format(const std::string& message, std::initializer_list<LogField> fields) {
  std::string line = message;
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    if (!field.value.empty() && field.value.find_first_of(" \"=\n\r\t") == std::string::npos) {
      line += field.value;
      continue;
    }
    line += '"';
    for (const char c : field.value) {
      if (c == '\n' || c == '\r' || c == '\t') {
        line += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
        continue;
      }
      if (c == '"' || c == '\\') line += '\\';
      line += c;
    }
    line += '"';
  }
  return line;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

struct Logger::Impl {
  explicit Impl(const std::string& name)
      : logger(name, std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %L %n: %v");
    logger.set_level(spdlog::level::debug);  // levels are decided before
    logger.flush_on(spdlog::level::debug);
  }
  spdlog::logger logger;
};

LogLevel ParseLogLevel(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

Logger::Logger(const std::string& name, LogLevel level)
    : level_(level), impl_(std::make_unique<Impl>(name)) {}
Logger::Logger(LogLevel level, Sink sink) : level_(level), sink_(std::move(sink)) {}
Logger::~Logger() = default;

void Logger::Log(LogLevel level, const std::string& message,
                 std::initializer_list<LogField> fields) const {
  if (level < level_) return;
  const std::string line = Format(message, fields);
  if (sink_) {
    sink_(level, line);
  } else {
    impl_->logger.log(ToSpdlog(level), "{}", line);
  }
}

}  // namespace quire
