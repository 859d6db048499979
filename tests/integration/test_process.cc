#include "tests/integration/test_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/status_macros.h"

namespace quire::test {

TestProcess::TestProcess(const std::string& program, std::vector<std::string> args) {
  const std::string path = std::string(QUIRE_BINARY_DIR) + "/bin/" + program;
  const char* base = std::getenv("TMPDIR");
  std::string name = std::string(base != nullptr ? base : "/tmp") + "/quire-test-stderr-XXXXXX";
  const int stderr_fd = mkostemp(name.data(), O_CLOEXEC);
  QUIRE_CHECK(stderr_fd >= 0);
  stderr_path_ = name;
  int out[2];
  QUIRE_CHECK(pipe2(out, O_CLOEXEC) == 0);
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_ = fork();
  QUIRE_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(stderr_fd, STDERR_FILENO);
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  close(out[1]);
  close(stderr_fd);
  stdout_fd_ = out[0];
}

TestProcess::~TestProcess() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    Wait();
  }
  close(stdout_fd_);
  unlink(stderr_path_.c_str());
}

std::string TestProcess::WaitReady(const std::string& key) {
  while (ready_line_.rfind("ready", 0) != 0 || ready_line_.back() != '\n') {
    char c;
    if (read(stdout_fd_, &c, 1) != 1) return "";
    if (!ready_line_.empty() && ready_line_.back() == '\n') ready_line_.clear();
    ready_line_ += c;
  }
  const size_t begin = ready_line_.find(key + "=");
  if (begin == std::string::npos) return "";
  const size_t value = begin + key.size() + 1;
  return ready_line_.substr(value, ready_line_.find_first_of(" \n", value) - value);
}

void TestProcess::Signal(int signal) const { kill(pid_, signal); }

int TestProcess::Wait() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!ended_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      result_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      break;
    }
    if (std::chrono::steady_clock::now() > deadline) return -1000;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return result_;
}

std::string TestProcess::Stderr() const {
  std::ostringstream text;
  text << std::ifstream(stderr_path_).rdbuf();
  return text.str();
}

}  // namespace quire::test
