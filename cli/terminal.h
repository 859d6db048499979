// What the tool shows on a terminal and what it hears from it. In a pipe there is no progress and
// no colour.
#ifndef QUIRE_CLI_TERMINAL_H_
#define QUIRE_CLI_TERMINAL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

namespace quire::cli {

bool IsTerminal(int fd);

// `text` in faint letters if standard error (or output) is a terminal.
std::string Faint(const std::string& text, int fd);
std::string Bold(const std::string& text, int fd);

std::string HumanBytes(int64_t bytes);  // "1.2 GiB"

// Control characters other than line ends and tabs made visible: what a model writes must not steer
// the user's terminal. Works on any piece of a stream.
std::string Printable(const std::string& text);

// A progress line on standard error, redrawn at most ten times a second; nothing in a pipe.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label) : label_(std::move(label)) {}
  ~ProgressLine() { Clear(); }
  void Update(int64_t done, int64_t total, bool bytes);
  void Clear();

 private:
  const std::string label_;
  int64_t last_us_ = 0;
  bool drawn_ = false;
};

// Lines typed by a user: with editing and history on a terminal, plain in a pipe.
class LineReader {
 public:
  LineReader();
  ~LineReader();
  std::optional<std::string> Read(const std::string& prompt);  // nullopt at the end of input

 private:
  const bool terminal_;
};

// Calls `on_interrupt` on a thread of its own for each SIGINT (Ctrl-C) while it lives. One at a
// time; must be made before other threads are started, so that they inherit the blocked signal.
class InterruptListener {
 public:
  explicit InterruptListener(std::function<void()> on_interrupt);
  ~InterruptListener();

 private:
  std::function<void()> on_interrupt_;
  int stop_fd_;
  int signal_fd_;
  std::thread thread_;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_TERMINAL_H_
