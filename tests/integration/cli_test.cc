// The tool `quire` and the C++ example as real processes, with a tiny real model.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/service_harness.h"
#include "tests/integration/test_process.h"
#include "tests/support/test_archive.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

struct Output {
  int code = -1;
  std::string out, err;
};

// Runs a program to its end, its output in files: none of its descriptors is a terminal.
Output RunTool(const std::string& program, std::vector<std::string> args,
               const std::string& input = "") {
  const TempDir directory;
  const std::string path =
      program[0] == '/' ? program : std::string(QUIRE_BINARY_DIR) + "/bin/" + program;
  const std::string in = directory.path() + "/in", out = directory.path() + "/out",
                    err = directory.path() + "/err";
  std::ofstream(in, std::ios::binary) << input;
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(open(in.c_str(), O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), O_CREAT | O_WRONLY, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_CREAT | O_WRONLY, 0600), STDERR_FILENO);
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), ReadAll(out), ReadAll(err)};
}

std::vector<std::string> UpArgs(const std::string& model, std::vector<std::string> more = {}) {
  std::vector<std::string> args = {
      "up",         "--model",       model,         "--threads", "1",           "--kv-cache-memory",
      "16MiB",      "--http-listen", "127.0.0.1:0", "--listen",  "127.0.0.1:0", "--metrics-listen",
      "127.0.0.1:0"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Cli, WrongUseEndsWith2AndNamesWhatIsWrong) {
  struct Case {
    std::vector<std::string> args;
    std::vector<std::string> says;
  };
  const Case kCases[] = {
      {{"generate", "-p", "x", "--tarjet", "a:1"}, {"--tarjet", "--target"}},
      {{"generate", "-p", "x", "--max-tokens", "many"}, {"--max-tokens", "many"}},
      {{"generate"}, {"--prompt"}},
      {{"chat", "--nonsense"}, {"--nonsense", "--system"}},
      {{"inspect"}, {"--target"}},
      {{"up", "--block-size", "17", "--nonsense"}, {"--block-size is 17", "--nonsense", "--model"}},
      {{"bench", "serve", "--arrival", "odd"}, {"--arrival", "odd", "poisson"}},
      {{"bench", "engine", "--nonsense"}, {"--nonsense"}},
      {{"nonsense"}, {"nonsense"}},
      {{}, {"subcommand"}},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c.args));
    const Output got = RunTool("quire", c.args);
    EXPECT_EQ(got.code, 2);
    EXPECT_EQ(got.out, "");
    for (const std::string& part : c.says) EXPECT_THAT(got.err, HasSubstr(part));
  }
}

TEST(Cli, HelpEndsWith0) {
  const std::vector<std::string> kCommands[] = {{},
                                                {"up"},
                                                {"chat"},
                                                {"generate"},
                                                {"inspect"},
                                                {"bench"},
                                                {"bench", "engine"},
                                                {"bench", "serve"}};
  for (std::vector<std::string> args : kCommands) {
    SCOPED_TRACE(::testing::PrintToString(args));
    args.push_back("--help");
    const Output got = RunTool("quire", args);
    EXPECT_EQ(got.code, 0);
    EXPECT_THAT(got.out, HasSubstr("--help"));
    EXPECT_EQ(got.err, "");
  }
}

TEST(Cli, MissingModelIsNamed) {
  const Output got = RunTool("quire", {"generate", "-p", "x", "--model", "/no/such/model"});
  EXPECT_EQ(got.code, 1);
  EXPECT_THAT(got.err, HasSubstr("/no/such/model"));
}

TEST(Cli, UpServesGenerateInAPipeAndEndsCleanOnSigint) {
  const TempDir directory;
  const std::string model = ExtractCaseModel("tiny_qwen3", directory);
  TestProcess up("quire", UpArgs(model, {"--workers", "2", "--with-cachesvc"}));
  const std::string target = up.WaitReady("grpc");
  ASSERT_NE(target, "") << up.Stderr();
  EXPECT_THAT(up.WaitReady("workers"), HasSubstr(","));
  EXPECT_NE(up.WaitReady("cachesvc"), "");

  const std::vector<std::string> ask = {
      "generate",     "--target", target,         "--temperature", "0",
      "--max-tokens", "12",       "--ignore-eos", "--prompt-file", "-"};
  const Output plain = RunTool("quire", ask, "the hen in the inn");
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.err, HasSubstr("12 tokens"));
  EXPECT_THAT(plain.out + plain.err, Not(HasSubstr("\x1b")));

  std::vector<std::string> two = ask;
  two.insert(two.end(), {"--json", "--n", "2"});
  const Output json = RunTool("quire", two, "the hen in the inn");
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(json.err, "");
  const auto object = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_TRUE(object.is_object()) << json.out;
  ASSERT_EQ(object["choices"].size(), 2u);
  EXPECT_EQ(object["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(object["choices"][1]["text"], object["choices"][0]["text"]);
  // The answer in a pipe is its bytes and nothing more.
  EXPECT_EQ(object["choices"][0]["text"], plain.out);

  // The address is taken.
  std::vector<std::string> again = UpArgs(model);
  again[10] = target;
  const Output taken = RunTool("quire", again);
  EXPECT_EQ(taken.code, 1);
  EXPECT_THAT(taken.err, HasSubstr(target));

  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(), 0) << up.Stderr();
  EXPECT_THAT(up.Stderr(), Not(HasSubstr("worker lost")));
}

TEST(Cli, BenchServePrintsJsonLines) {
  const TempDir directory;
  TestProcess up("quire", UpArgs(ExtractCaseModel("tiny_qwen3", directory)));
  const std::string target = up.WaitReady("grpc");
  ASSERT_NE(target, "") << up.Stderr();
  const Output got = RunTool("quire", {"bench", "serve", "--target", target, "--num-requests", "4",
                                       "--prompt-tokens", "8", "--gen-tokens", "4", "--json"});
  EXPECT_EQ(got.code, 0) << got.err;
  std::istringstream lines(got.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(object.is_object()) << line;
    for (const char* field : {"name", "value", "unit", "settings"}) {
      EXPECT_TRUE(object.contains(field)) << line;
    }
  }
  EXPECT_GT(count, 0);
}

TEST(Cli, ChatRemembersTheConversation) {
  const TempDir directory;
  TestProcess up("quire", UpArgs(ExtractCaseModel("tiny_qwen3", directory)));
  const std::string target = up.WaitReady("grpc");
  ASSERT_NE(target, "") << up.Stderr();
  const std::string question = "the hen in the inn and the other hen in the other inn";
  const Output got = RunTool(
      "quire",
      {"chat", "--target", target, "--temperature", "0", "--max-tokens", "6", "--ignore-eos"},
      question + "\n/nonsense\n\n" + question + "\n/exit\n");
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("unknown command /nonsense"));
  // The first turn finds nothing; the second starts with the first one's tokens.
  const size_t first = got.err.find("(0 cached)");
  ASSERT_NE(first, std::string::npos) << got.err;
  EXPECT_EQ(got.err.find("(0 cached)", first + 1), std::string::npos) << got.err;
  EXPECT_THAT(got.err, HasSubstr("6 tokens"));
}

// The clients that the README shows.
TEST(Examples, BothClientsStreamTheSameAnswer) {
  const TempDir directory;
  TestProcess up("quire", UpArgs(ExtractCaseModel("tiny_qwen3", directory)));
  const std::string target = up.WaitReady("grpc");
  ASSERT_NE(target, "") << up.Stderr();
  const Output cpp = RunTool("example_client", {target, "the hen"});
  EXPECT_EQ(cpp.code, 0) << cpp.err;
  EXPECT_GT(cpp.out.size(), 1u);
  EXPECT_EQ(RunTool("example_client", {"127.0.0.1:1", "the hen"}).code, 1);

  const std::string classes = std::string(QUIRE_BINARY_DIR) + "/examples/python";
  if (RunTool("/usr/bin/python3", {"-c", "import grpc, google.protobuf"}).code != 0) {
    GTEST_SKIP() << "/usr/bin/python3 has no grpc (Debian: python3-grpcio, python3-protobuf)";
  }
  setenv("PYTHONPATH", classes.c_str(), 1);
  const Output python =
      RunTool("/usr/bin/python3", {QUIRE_SOURCE_DIR "/examples/client.py", target, "the hen"});
  unsetenv("PYTHONPATH");
  EXPECT_EQ(python.code, 0) << python.err;
  EXPECT_EQ(python.out, cpp.out);
}

}  // namespace
}  // namespace quire::test
