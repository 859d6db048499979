#include "worker/engine/block_manager.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr int32_t kBlock = 4;

std::vector<int32_t> Tokens(int32_t seed) { return {seed, seed + 1, seed + 2, seed + 3}; }

// A chain of committed blocks with one ticket each. Names: the keys of the chain's blocks.
struct Chain {
  std::vector<int32_t> ids;
  std::vector<BlockKey> keys;
};

BlockKey RootOf(uint8_t tenant) {
  BlockKey root;
  root.bytes[31] = tenant;
  return root;
}

Chain MakeChain(BlockManager* blocks, int32_t seed, int32_t length) {
  Chain chain;
  BlockKey parent = RootOf(0);
  for (int32_t i = 0; i < length; ++i) {
    const std::vector<int32_t> tokens = Tokens(seed + i);
    chain.keys.push_back(NextBlockKey(parent, "", tokens));
    const int32_t id = blocks->Allocate().value();
    EXPECT_EQ(blocks->Commit(id, chain.keys[i], parent, i, tokens), id);
    chain.ids.push_back(id);
    parent = chain.keys[i];
  }
  return chain;
}

void Release(BlockManager* blocks, const Chain& chain) {
  for (auto it = chain.ids.rbegin(); it != chain.ids.rend(); ++it) blocks->Release(*it);
}

bool Findable(const BlockManager& blocks, const Chain& chain, int32_t seed, int32_t i) {
  return blocks.Find(chain.keys[i], i == 0 ? RootOf(0) : chain.keys[i - 1], Tokens(seed + i))
      .has_value();
}

#define EXPECT_SOUND(blocks) EXPECT_TRUE((blocks).CheckInvariants().ok())

TEST(BlockManager, HandsOutEachBlockOnce) {
  for (const int32_t num_blocks : {0, 1, 2, 17}) {
    BlockManager blocks(num_blocks, kBlock);
    std::vector<bool> seen(num_blocks, false);
    for (int32_t i = 0; i < num_blocks; ++i) {
      const int32_t id = blocks.Allocate().value();
      EXPECT_FALSE(seen.at(id));
      seen[id] = true;
    }
    EXPECT_FALSE(blocks.Allocate().has_value());
    EXPECT_EQ(blocks.num_held(), num_blocks);
    EXPECT_SOUND(blocks);
    for (int32_t id = 0; id < num_blocks; ++id) blocks.Release(id);
    EXPECT_EQ(blocks.num_free(), num_blocks);
    EXPECT_SOUND(blocks);
  }
}

TEST(BlockManager, CommittedBlocksStayFindableUntilTheirMemoryIsWanted) {
  BlockManager blocks(4, kBlock);
  const Chain chain = MakeChain(&blocks, 100, 3);
  Release(&blocks, chain);
  EXPECT_EQ(blocks.num_cached(), 3);
  for (int32_t i = 0; i < 3; ++i) EXPECT_TRUE(Findable(blocks, chain, 100, i));
  // The free block goes first, then the chain from its tail.
  for (int32_t left = 3; left >= 0; --left) {
    EXPECT_EQ(blocks.num_cached(), left);
    for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(Findable(blocks, chain, 100, i), i < left);
    EXPECT_SOUND(blocks);
    for (int32_t i = left == 3 ? 2 : left > 0 ? 1 : 0; i > 0; --i) {
      EXPECT_TRUE(blocks.Allocate().has_value());
    }
  }
}

TEST(BlockManager, LeastRecentlyUsedChainGoesFirst) {
  BlockManager blocks(4, kBlock);
  const Chain a = MakeChain(&blocks, 100, 2);
  const Chain b = MakeChain(&blocks, 200, 2);
  Release(&blocks, a);
  Release(&blocks, b);
  for (const int32_t id : a.ids) blocks.Ref(id);  // used again
  Release(&blocks, a);
  ASSERT_TRUE(blocks.Allocate().has_value());
  ASSERT_TRUE(blocks.Allocate().has_value());
  EXPECT_FALSE(Findable(blocks, b, 200, 0));
  EXPECT_TRUE(Findable(blocks, a, 100, 1));
  EXPECT_SOUND(blocks);
}

TEST(BlockManager, HeldBlocksAreNeverEvicted) {
  BlockManager blocks(2, kBlock);
  const Chain chain = MakeChain(&blocks, 100, 2);
  EXPECT_FALSE(blocks.Allocate().has_value());
  blocks.Ref(chain.ids[0]);
  blocks.Release(chain.ids[0]);
  EXPECT_FALSE(blocks.Allocate().has_value());
  EXPECT_SOUND(blocks);
}

TEST(BlockManager, HitComparesTokensAndParent) {
  BlockManager blocks(4, kBlock);
  const Chain chain = MakeChain(&blocks, 100, 2);
  EXPECT_TRUE(blocks.Find(chain.keys[0], RootOf(0), Tokens(100)).has_value());
  EXPECT_FALSE(blocks.Find(chain.keys[0], RootOf(1), Tokens(100)).has_value());
  EXPECT_FALSE(blocks.Find(chain.keys[0], RootOf(0), Tokens(101)).has_value());
  EXPECT_FALSE(blocks.Find(chain.keys[1], RootOf(0), Tokens(101)).has_value());
}

TEST(BlockManager, EqualContentIsFiledOnce) {
  BlockManager blocks(4, kBlock);
  const Chain chain = MakeChain(&blocks, 100, 1);
  const int32_t twin = blocks.Allocate().value();
  EXPECT_EQ(blocks.Commit(twin, chain.keys[0], RootOf(0), 0, Tokens(100)), chain.ids[0]);
  // The same key with other tokens: the digest is not trusted, the block stays private.
  EXPECT_EQ(blocks.Commit(twin, chain.keys[0], RootOf(0), 0, Tokens(7)), twin);
  EXPECT_TRUE(blocks.IsWritable(twin));
  blocks.Release(twin);
  EXPECT_EQ(blocks.num_cached(), 0);
  EXPECT_SOUND(blocks);
}

TEST(BlockManager, SharedAndCommittedBlocksAreNotWritable) {
  BlockManager blocks(4, kBlock);
  const int32_t id = blocks.Allocate().value();
  EXPECT_TRUE(blocks.IsWritable(id));
  blocks.Ref(id);
  EXPECT_FALSE(blocks.IsWritable(id));
  blocks.Defer(id);  // the other holder only waits for a step
  EXPECT_TRUE(blocks.IsWritable(id));
  EXPECT_EQ(blocks.num_returning(), 0);
  blocks.Defer(id);
  EXPECT_EQ(blocks.num_returning(), 1);
  EXPECT_SOUND(blocks);
  blocks.ReleaseDeferred(id);
  blocks.ReleaseDeferred(id);
  EXPECT_EQ(blocks.num_free(), 4);
  EXPECT_EQ(blocks.num_tickets_open(), 0);
  const Chain chain = MakeChain(&blocks, 1, 1);
  EXPECT_FALSE(blocks.IsWritable(chain.ids[0]));
}

TEST(BlockManager, PinnedBlocksGoLastAndOnlyWhenNothingElseIsLeft) {
  BlockManager blocks(6, kBlock);
  const Chain a = MakeChain(&blocks, 100, 2);
  const Chain b = MakeChain(&blocks, 200, 2);
  EXPECT_TRUE(blocks.Pin(a.ids[0], 50));
  EXPECT_TRUE(blocks.Pin(a.ids[1], 50));
  Release(&blocks, a);
  Release(&blocks, b);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(blocks.Allocate().has_value());
  EXPECT_FALSE(Findable(blocks, b, 200, 0));
  EXPECT_TRUE(Findable(blocks, a, 100, 1));
  ASSERT_TRUE(blocks.Allocate().has_value());  // the tail first here too
  EXPECT_FALSE(Findable(blocks, a, 100, 1));
  EXPECT_TRUE(Findable(blocks, a, 100, 0));
  EXPECT_SOUND(blocks);
  ASSERT_TRUE(blocks.Allocate().has_value());
  EXPECT_FALSE(blocks.Allocate().has_value());
  EXPECT_EQ(blocks.num_pinned(), 0);
  EXPECT_SOUND(blocks);
}

TEST(BlockManager, PinsExpire) {
  BlockManager blocks(4, kBlock);
  const Chain a = MakeChain(&blocks, 100, 2);
  EXPECT_EQ(blocks.next_expiry_us(), 0);
  EXPECT_TRUE(blocks.Pin(a.ids[0], 50));
  EXPECT_TRUE(blocks.Pin(a.ids[1], 40));
  EXPECT_TRUE(blocks.Pin(a.ids[1], 30));  // the later time wins
  EXPECT_EQ(blocks.next_expiry_us(), 40);
  Release(&blocks, a);
  blocks.ExpirePins(39);
  EXPECT_EQ(blocks.num_pinned(), 2);
  blocks.ExpirePins(40);
  EXPECT_EQ(blocks.num_pinned(), 1);
  EXPECT_SOUND(blocks);
  blocks.ExpirePins(1000);
  EXPECT_EQ(blocks.num_pinned(), 0);
  EXPECT_EQ(blocks.num_cached(), 2);  // still findable
  EXPECT_SOUND(blocks);
}

TEST(BlockManager, AtMostHalfIsPinnedAndNoBlockWithoutItsParent) {
  BlockManager blocks(6, kBlock);
  const Chain a = MakeChain(&blocks, 100, 4);
  EXPECT_FALSE(blocks.Pin(a.ids[1], 50));  // its parent is not pinned
  EXPECT_TRUE(blocks.Pin(a.ids[0], 50));
  EXPECT_FALSE(blocks.Pin(a.ids[1], 60));  // ... not for as long
  EXPECT_TRUE(blocks.Pin(a.ids[1], 50));
  EXPECT_TRUE(blocks.Pin(a.ids[2], 50));
  EXPECT_FALSE(blocks.Pin(a.ids[3], 50));
  EXPECT_EQ(blocks.num_pinned(), 3);
  const int32_t plain = blocks.Allocate().value();
  EXPECT_FALSE(blocks.Pin(plain, 50));  // not committed
  EXPECT_SOUND(blocks);
}

TEST(BlockManager, RunsAreConsecutive) {
  BlockManager blocks(11, kBlock, /*run_blocks=*/4);  // two runs, three blocks unused
  EXPECT_EQ(blocks.num_free_runs(), 2);
  const int32_t a = blocks.AllocateRun().value();
  const int32_t b = blocks.AllocateRun().value();
  EXPECT_EQ(std::abs(a - b), 4);
  EXPECT_FALSE(blocks.AllocateRun().has_value());
  for (int32_t id = a + 3; id >= a; --id) blocks.Release(id);
  EXPECT_EQ(blocks.num_free_runs(), 1);
  EXPECT_SOUND(blocks);
  EXPECT_EQ(blocks.AllocateRun().value(), a);
}

// Random tables over a small pool, used as the engine uses it: prefixes are found and shared, tails
// are allocated and committed, tables are released from the tail.
TEST(BlockManager, RandomTablesKeepTheInvariants) {
  const char* const given = std::getenv("TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 7;
  std::printf("TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 rng(seed);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng);
  };
  BlockManager blocks(24, kBlock);
  struct Table {
    std::vector<int32_t> ids;
    bool deferred = false;
  };
  std::vector<Table> tables;
  int64_t num_hits = 0, num_pins = 0;
  for (TimeUs now = 1; now <= 5000; ++now) {
    blocks.ExpirePins(now);
    const int32_t kind = between(0, 9);
    if (kind < 6) {
      Table table;
      BlockKey parent = RootOf(0);
      bool hit = true;
      const int32_t length = between(1, 6);
      for (int32_t i = 0; i < length; ++i) {
        const std::vector<int32_t> tokens = Tokens(10 * i + between(0, i == 0 ? 1 : 2));
        const BlockKey key = NextBlockKey(parent, "", tokens);
        const auto found = hit ? blocks.Find(key, parent, tokens) : std::nullopt;
        hit = found.has_value();
        num_hits += hit;
        if (hit) {
          blocks.Ref(*found);
          table.ids.push_back(*found);
        } else {
          const auto own = blocks.Allocate();
          if (!own.has_value()) break;
          const int32_t id = blocks.Commit(*own, key, parent, i, tokens);
          if (id != *own) {
            blocks.Ref(id);
            blocks.Release(*own);
          }
          table.ids.push_back(id);
        }
        if (between(0, 3) == 0) num_pins += blocks.Pin(table.ids.back(), now + between(1, 50));
        parent = key;
      }
      tables.push_back(table);
    } else if (!tables.empty()) {
      const size_t at = between(0, static_cast<int32_t>(tables.size()) - 1);
      Table& table = tables[at];
      if (kind == 6 && !table.deferred) {
        for (auto it = table.ids.rbegin(); it != table.ids.rend(); ++it) blocks.Defer(*it);
        table.deferred = true;
      } else {
        for (auto it = table.ids.rbegin(); it != table.ids.rend(); ++it) {
          table.deferred ? blocks.ReleaseDeferred(*it) : blocks.Release(*it);
        }
        tables.erase(tables.begin() + at);
      }
    }
    const absl::Status status = blocks.CheckInvariants();
    ASSERT_TRUE(status.ok()) << status << " at " << now;
  }
  EXPECT_GT(num_hits, 100);
  EXPECT_GT(num_pins, 100);
}

}  // namespace
}  // namespace quire
