#include "router/placement.h"

#include <gtest/gtest.h>

#include "router/prefix_history.h"

namespace quire {
namespace {

std::vector<BlockKey> Keys(const std::vector<uint8_t>& names) {
  std::vector<BlockKey> keys;
  for (const uint8_t name : names) {
    BlockKey key;
    key.bytes.fill(name);
    keys.push_back(key);
  }
  return keys;
}

TEST(PrefixHistory, MatchesLeadingBlocksOnly) {
  PrefixHistory history;
  history.Record(Keys({1, 2, 3}), 0);
  history.Record(Keys({1, 2}), 1);
  history.Record(Keys({9, 3}), 2);
  EXPECT_EQ(history.Match(Keys({1, 2, 3, 4}), 3), (std::vector<int32_t>{3, 2, 0}));
  EXPECT_EQ(history.Match(Keys({3}), 3), (std::vector<int32_t>{1, 0, 1}));
  EXPECT_EQ(history.Match(Keys({4, 1}), 3), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(history.Match({}, 2), (std::vector<int32_t>{0, 0}));
  history.ForgetWorker(0);
  EXPECT_EQ(history.Match(Keys({1, 2, 3}), 3), (std::vector<int32_t>{0, 2, 0}));
}

TEST(PrefixHistory, ForgetsTheOldestTailFirst) {
  PrefixHistory history(4);
  history.Record(Keys({1, 2, 3}), 63);
  history.Record(Keys({1, 2}), 63);
  history.Record(Keys({7, 8}), 63);
  EXPECT_EQ(history.size(), 4u);
  EXPECT_EQ(history.Match(Keys({1, 2, 3}), 64)[63], 2);  // 3 is the oldest
  history.Record(Keys({5}), 63);
  EXPECT_EQ(history.Match(Keys({1, 2}), 64)[63], 1);
}

TEST(Placement, PrefersThePrefixUntilItsWorkerIsBusier) {
  std::vector<PlacementCandidate> c(2);
  c[1].cached_tokens = 512;
  PlacementChoice choice = ChoosePlacement(c, 600, 0);
  EXPECT_EQ(choice.worker, 1);
  EXPECT_EQ(choice.reason, "prefix: 512 of 600 tokens");
  c[1].uncached_tokens_in_flight = 511;
  EXPECT_EQ(ChoosePlacement(c, 600, 0).worker, 1);
  c[1].uncached_tokens_in_flight = 513;
  choice = ChoosePlacement(c, 600, 0);
  EXPECT_EQ(choice.worker, 0);
  EXPECT_EQ(choice.reason, "least loaded");
}

TEST(Placement, SkipsWhatRefusesAndTakesTurns) {
  std::vector<PlacementCandidate> c(3);
  c[0].refused = "not connected";
  EXPECT_EQ(ChoosePlacement(c, 10, 0).worker, 1);
  EXPECT_EQ(ChoosePlacement(c, 10, 2).worker, 2);
  c[2].requests_in_flight = 1;
  EXPECT_EQ(ChoosePlacement(c, 10, 2).worker, 1);
  c[1].refused = c[2].refused = "draining";
  EXPECT_EQ(ChoosePlacement(c, 10, 1).worker, -1);
  EXPECT_EQ(ChoosePlacement({}, 10, 1).worker, -1);
}

}  // namespace
}  // namespace quire
