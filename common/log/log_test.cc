#include "common/log/log.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

TEST(Logger, FormatsFieldsAndKeepsLevels) {
  std::vector<std::string> lines;
  const Logger log(LogLevel::kInfo,
                   [&](LogLevel, const std::string& line) { lines.push_back(line); });
  log.Debug("hidden");
  log.Info(
      "ready",
      {{"address", "127.0.0.1:1"}, {"n", 3}, {"ok", true}, {"text", "a \"b\"\nc"}, {"none", ""}});
  log.Error("plain");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "ready address=127.0.0.1:1 n=3 ok=true text=\"a \\\"b\\\"\\nc\" none=\"\"");
  EXPECT_EQ(lines[1], "plain");
}

TEST(Logger, BracesInAMessageAreText) {
  const Logger log("test", LogLevel::kError);
  log.Error("{} {0} {unclosed", {{"k", "{}"}});
}

}  // namespace
}  // namespace quire
