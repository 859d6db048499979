// A real process for tests: started with arguments, its output read, ended by a signal.
#ifndef QUIRE_TESTS_INTEGRATION_TEST_PROCESS_H_
#define QUIRE_TESTS_INTEGRATION_TEST_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace quire::test {

class TestProcess {
 public:
  // `program` is a name in build/<preset>/bin.
  TestProcess(const std::string& program, std::vector<std::string> args);
  ~TestProcess();  // SIGKILL if it still runs.
  TestProcess(const TestProcess&) = delete;

  // Reads stdout to the line that begins with "ready" and gives the value of `key` in it
  // ("grpc", "metrics"); "" if the process ends without one.
  std::string WaitReady(const std::string& key);

  void Signal(int signal) const;
  // Waits for the end; -1000 after 30 s, -signal if a signal ended it.
  int Wait();
  // Everything written so far; complete after Wait().
  std::string Stderr() const;

 private:
  pid_t pid_ = -1;
  int stdout_fd_ = -1;
  std::string stderr_path_;
  std::string ready_line_;
  bool ended_ = false;
  int result_ = 0;
};

}  // namespace quire::test

#endif  // QUIRE_TESTS_INTEGRATION_TEST_PROCESS_H_
