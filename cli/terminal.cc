#include "cli/terminal.h"

#include <editline/readline.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace quire::cli {

bool IsTerminal(int fd) { return isatty(fd) == 1; }

std::string Faint(const std::string& text, int fd) {
  return IsTerminal(fd) ? "\x1b[2m" + text + "\x1b[0m" : text;
}

std::string Bold(const std::string& text, int fd) {
  return IsTerminal(fd) ? "\x1b[1m" + text + "\x1b[0m" : text;
}

std::string HumanBytes(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? absl::StrFormat("%d B", bytes)
                   : absl::StrFormat("%.1f %s", value, units[unit]);
}

std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      out += absl::StrFormat("\\x%02x", byte);
    } else {
      out += c;
    }
  }
  return out;
}

void ProgressLine::Update(int64_t done, int64_t total, bool bytes) {
  if (!IsTerminal(STDERR_FILENO) || total <= 0) return;
  const int64_t now_us = SteadyClock().NowUs();
  if (done < total && now_us - last_us_ < 100'000) return;
  last_us_ = now_us;
  drawn_ = true;
  const int width = 30;
  const int filled = static_cast<int>(width * std::min(done, total) / total);
  const std::string amounts = bytes ? HumanBytes(done) + " of " + HumanBytes(total)
                                    : absl::StrFormat("%d of %d", done, total);
  std::fprintf(stderr, "\r\x1b[K%s [%s%s] %s", label_.c_str(), std::string(filled, '=').c_str(),
               std::string(width - filled, ' ').c_str(), amounts.c_str());
  std::fflush(stderr);
}

void ProgressLine::Clear() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

LineReader::LineReader() : terminal_(IsTerminal(STDIN_FILENO) && IsTerminal(STDOUT_FILENO)) {
  if (terminal_) using_history();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::Read(const std::string& prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  char* typed = readline(prompt.c_str());
  if (typed == nullptr) return std::nullopt;
  std::string line = typed;
  std::free(typed);
  if (!line.empty()) add_history(line.c_str());
  return line;
}

InterruptListener::InterruptListener(std::function<void()> on_interrupt)
    : on_interrupt_(std::move(on_interrupt)) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  QUIRE_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this] {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    while (true) {
      if (poll(fds, 2, -1) < 0) continue;
      if ((fds[1].revents & POLLIN) != 0) return;
      signalfd_siginfo info;
      if (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) on_interrupt_();
    }
  });
}

InterruptListener::~InterruptListener() {
  const uint64_t one = 1;
  QUIRE_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

}  // namespace quire::cli
