#include "common/config/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

struct Config {
  std::string model;
  bool paged = true;
  int32_t block_size = 16;
  int32_t threads = 0;
  double ratio = 0.15;
  std::string device = "auto";
  int64_t memory = 0;
  std::string listen = "127.0.0.1:8410";
  std::vector<std::string> workers;
};

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() : table_("quire-test", "A test.") {
    table_.AddString("model", &config_.model, "what to serve");
    table_.AddBool("enable-paged-attn", &config_.paged, "pages");
    table_.AddInt("block-size", &config_.block_size, 16, 32, "tokens");
    table_.AddIntOrAuto("threads", &config_.threads, 1, 64, "threads");
    table_.AddDouble("ratio", &config_.ratio, 0, 1, "a share");
    table_.AddChoice("device", &config_.device, {"auto", "cpu"}, "where");
    table_.AddBytes("memory", &config_.memory, "bytes");
    table_.AddAddress("listen", &config_.listen, false, "address");
    table_.AddList("workers", &config_.workers, "addresses");
  }
  absl::Status Parse(const std::vector<std::string>& args) {
    return table_.Parse(args, [this](const char* name) -> const char* {
      const auto it = environment_.find(name);
      return it == environment_.end() ? nullptr : it->second.c_str();
    });
  }
  std::string WriteFile(const std::string& text) {
    const std::string path = ::testing::TempDir() + "flags_test_" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                             ".yaml";
    std::ofstream(path) << text;
    return path;
  }

  Config config_;
  FlagTable table_;
  std::map<std::string, std::string> environment_;
};

TEST_F(FlagsTest, DefaultsStay) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_TRUE(config_.paged);
  EXPECT_EQ(config_.block_size, 16);
  EXPECT_FALSE(table_.IsSet("block-size"));
}

TEST_F(FlagsTest, EveryKindAndSpelling) {
  ASSERT_TRUE(Parse({"--model", "/m", "--enable-paged-attn=false", "--block-size=32", "--threads",
                     "auto", "--ratio", "0.5", "--device=cpu", "--memory", "2GiB", "--listen",
                     "[::1]:0", "--workers", "a:1, b:2"})
                  .ok());
  EXPECT_EQ(config_.model, "/m");
  EXPECT_FALSE(config_.paged);
  EXPECT_EQ(config_.block_size, 32);
  EXPECT_EQ(config_.threads, 0);
  EXPECT_EQ(config_.ratio, 0.5);
  EXPECT_EQ(config_.memory, int64_t{2} << 30);
  EXPECT_THAT(config_.workers, ElementsAre("a:1", "b:2"));
  ASSERT_TRUE(Parse({"--enable-paged-attn"}).ok());
  EXPECT_TRUE(config_.paged);
  ASSERT_TRUE(Parse({"--enable-paged-attn", "false"}).ok());
  EXPECT_FALSE(config_.paged);
}

TEST_F(FlagsTest, AllFaultsAtOnce) {
  const std::string path = WriteFile("blok_size: 16\ndevice: tpu\nratio: 2\n");
  environment_["QUIRE_THREADS"] = "many";
  const absl::Status status = Parse({"--block-size", "17000", "--memori", "3", "--memory", "-1",
                                     "--listen", "nowhere", "--config", path, "stray", "--model"});
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  for (const char* part :
       {"--block-size is '17000': must be an integer from 16 to 32",
        "unknown flag --memori (did you mean --memory?)", "--memory is '-1'",
        "--listen is 'nowhere'", "unexpected argument 'stray'", "--model needs a value",
        ":1: blok_size: unknown key (did you mean --block-size?)", ":2: device is 'tpu'",
        ":3: ratio is '2'", "QUIRE_THREADS is 'many'"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 9);
}

TEST_F(FlagsTest, FlagBeatsFileBeatsEnvironmentAndSaysSo) {
  const std::string path = WriteFile("block_size: 32\nratio: 0.25\nworkers: [a:1, b:2]\n");
  environment_ = {{"QUIRE_BLOCK_SIZE", "16"}, {"QUIRE_RATIO", "0.5"}, {"QUIRE_MODEL", "m"}};
  ASSERT_TRUE(Parse({"--config", path, "--ratio", "0.75"}).ok());
  EXPECT_EQ(config_.block_size, 32);
  EXPECT_EQ(config_.ratio, 0.75);
  EXPECT_EQ(config_.model, "m");
  EXPECT_THAT(config_.workers, ElementsAre("a:1", "b:2"));
  ASSERT_THAT(table_.notes(), SizeIs(3));
  EXPECT_THAT(table_.notes()[0], HasSubstr("ratio=0.25 has no effect: flag says 0.75"));
  EXPECT_THAT(table_.EffectiveYaml(), HasSubstr("block_size: 32  # file\n"));
  EXPECT_THAT(table_.EffectiveYaml(), HasSubstr("model: m  # environment\n"));
  EXPECT_THAT(table_.EffectiveYaml(), HasSubstr("device: auto  # default\n"));
}

TEST_F(FlagsTest, BrokenFilesAreFaults) {
  EXPECT_THAT(std::string(Parse({"--config", "/no/such/file"}).message()),
              HasSubstr("/no/such/file"));
  const std::string path = WriteFile("a: [unclosed\n");
  EXPECT_THAT(std::string(Parse({"--config", path}).message()), HasSubstr(path));
  const std::string list = WriteFile("- 1\n- 2\n");
  EXPECT_THAT(std::string(Parse({"--config", list}).message()), HasSubstr("key: value"));
  const std::string nested = WriteFile("model: {a: 1}\n");
  EXPECT_THAT(std::string(Parse({"--config", nested}).message()),
              HasSubstr("model: needs a value"));
}

TEST_F(FlagsTest, ChecksAreListedWithTheRest) {
  table_.AddCheck([] { return absl::InvalidArgumentError("--model is needed"); });
  const std::string message(Parse({"--ratio", "x"}).message());
  EXPECT_THAT(message, HasSubstr("--ratio is 'x'"));
  EXPECT_THAT(message, HasSubstr("--model is needed"));
}

TEST_F(FlagsTest, OneNameManyVariables) {
  int32_t other = 16;
  table_.AddInt("block-size", &other, 16, 32, "again");
  ASSERT_TRUE(Parse({"--block-size", "32"}).ok());
  EXPECT_EQ(other, 32);
  EXPECT_EQ(config_.block_size, 32);
}

TEST_F(FlagsTest, HelpNamesEveryFlagWithItsDefault) {
  ASSERT_TRUE(Parse({"--help", "--nonsense"}).ok());
  ASSERT_TRUE(table_.help_requested());
  const std::string help = table_.HelpText();
  for (const EffectiveValue& value : table_.Effective()) {
    EXPECT_THAT(help, HasSubstr("--" + value.name));
  }
  EXPECT_THAT(help, HasSubstr("(default: 127.0.0.1:8410)"));
}

TEST(ParseBytes, UnitsAndFaults) {
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("1.5 GiB"), int64_t{3} << 29);
  EXPECT_EQ(*ParseBytes("2GB"), 2'000'000'000);
  for (const char* bad : {"", "GiB", "1XB", "1 2", "-1", "1e30", "99999999999TiB", "."}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
  EXPECT_EQ(FormatBytes(int64_t{2} << 30), "2GiB");
  EXPECT_EQ(FormatBytes(931840), "910KiB");
}

TEST(ParseHostPort, FormsAndFaults) {
  EXPECT_EQ(ParseHostPort("localhost:80")->host, "localhost");
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
  for (const char* bad : {"", ":1", "a", "a:", "a:65536", "a:-1", "::1:80", "a:1x"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
}

TEST(ReadClusterSecret, ShortOrMissingIsRefusedWithoutShowingIt) {
  EXPECT_EQ(*ReadClusterSecret(""), "");
  EXPECT_EQ(ReadClusterSecret("/no/such").status().code(), absl::StatusCode::kNotFound);
  const std::string path = ::testing::TempDir() + "flags_test_secret";
  std::ofstream(path) << "short\n";
  const absl::Status status = ReadClusterSecret(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("short")));
  std::ofstream(path) << "0123456789abcdef\r\n";
  EXPECT_EQ(*ReadClusterSecret(path), "0123456789abcdef");
}

}  // namespace
}  // namespace quire
