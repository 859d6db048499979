#include "common/block_key.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "common/sha256.h"

namespace quire {
namespace {

std::string Hex(const std::array<uint8_t, 32>& bytes) { return BlockKey{bytes}.ToHex(); }

std::vector<Sha256CompressFn> Compressions() {
  std::vector<Sha256CompressFn> list = {Sha256CompressPortable};
  if (HasShaNi()) list.push_back(Sha256CompressShaNi);
  return list;
}

TEST(Sha256, PublishedExamples) {  // FIPS 180-2, appendix B, and the empty message
  for (Sha256CompressFn compress : Compressions()) {
    EXPECT_EQ(Hex(Sha256("abc", compress)),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(Hex(Sha256("", compress)),
              "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", compress)),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  }
}

TEST(Sha256, EveryLengthMatchesOpenSsl) {
  std::mt19937_64 rng(1);
  for (size_t length = 0; length <= 300; ++length) {
    std::string message(length, '\0');
    for (char& c : message) c = static_cast<char>(rng());
    std::array<uint8_t, 32> want;
    SHA256(reinterpret_cast<const uint8_t*>(message.data()), length, want.data());
    for (Sha256CompressFn compress : Compressions()) {
      ASSERT_EQ(Hex(Sha256(message, compress)), Hex(want)) << "length " << length;
    }
  }
}

struct Golden {
  std::string name;
  BlockKeyRoot root;
  std::string variant, root_hex;
  int32_t block_size = 0;
  std::vector<int32_t> tokens;
  std::vector<std::string> keys;
};

std::string FromHex(const std::string& hex) {
  std::string out;
  if (hex == "-") return out;
  for (size_t i = 0; i < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

std::vector<Golden> ReadGoldens() {
  std::ifstream file(QUIRE_SOURCE_DIR "/tests/golden/block_key/vectors.txt");
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string name = line.substr(0, space), value = line.substr(space + 1);
    if (name == "case") goldens.push_back({value, {}, "", "", 0, {}, {}});
    if (goldens.empty()) continue;
    Golden& g = goldens.back();
    if (name == "model_digest") g.root.model_digest = FromHex(value);
    if (name == "kv_layout") g.root.kv_layout = FromHex(value);
    if (name == "numerics") g.root.numerics = FromHex(value);
    if (name == "adapter") g.root.adapter = FromHex(value);
    if (name == "salt") g.root.salt = FromHex(value);
    if (name == "variant") g.variant = FromHex(value);
    if (name == "block_size") g.block_size = std::stoi(value);
    if (name == "root") g.root_hex = value;
    if (name == "key") g.keys.push_back(value);
    if (name == "tokens" && value != "-") {
      std::istringstream ids(value);
      for (std::string id; std::getline(ids, id, ',');) g.tokens.push_back(std::stoi(id));
    }
  }
  return goldens;
}

TEST(BlockKey, MatchesGoldenVectors) {
  const std::vector<Golden> goldens = ReadGoldens();
  ASSERT_GE(goldens.size(), 16u);
  size_t num_keys = 0;
  for (const Golden& g : goldens) {
    SCOPED_TRACE(g.name);
    BlockKey parent = g.root.Compute();
    EXPECT_EQ(parent.ToHex(), g.root_hex);
    const std::vector<BlockKey> keys =
        ChainBlockKeys(g.root.Compute(), g.variant, g.tokens, g.block_size);
    ASSERT_EQ(keys.size(), g.keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(keys[i].ToHex(), g.keys[i]) << "block " << i;
      const auto block = std::span<const int32_t>(g.tokens).subspan(i * g.block_size, g.block_size);
      parent = NextBlockKey(parent, g.variant, block);
      EXPECT_EQ(parent, keys[i]) << "block " << i;
      ++num_keys;
    }
  }
  EXPECT_GE(num_keys, 25u);
}

TEST(BlockKey, SaltAndAdapterWithTheSameLettersDiffer) {  // pub-g-tenants, its unit step
  const auto root = [](const char* salt, const char* adapter) {
    BlockKeyRoot r{"digest", "layout", "numerics", adapter, salt};
    return r.Compute();
  };
  std::set<std::string> roots, keys;
  const std::vector<int32_t> tokens(16, 7);
  for (const auto& [salt, adapter] : std::vector<std::pair<const char*, const char*>>{
           {"ab", "c"}, {"a", "bc"}, {"", "abc"}, {"abc", ""}}) {
    roots.insert(root(salt, adapter).ToHex());
    keys.insert(NextBlockKey(root(salt, adapter), "", tokens).ToHex());
  }
  EXPECT_EQ(roots.size(), 4u);
  EXPECT_EQ(keys.size(), 4u);
}

TEST(BlockKey, EveryFieldAndEveryTokenCounts) {
  BlockKeyRoot base{"m", "k", "n", "a", "s"};
  std::set<std::string> seen = {base.Compute().ToHex()};
  for (std::string BlockKeyRoot::*field :
       {&BlockKeyRoot::model_digest, &BlockKeyRoot::kv_layout, &BlockKeyRoot::numerics,
        &BlockKeyRoot::adapter, &BlockKeyRoot::salt}) {
    BlockKeyRoot changed = base;
    (changed.*field) += "x";
    EXPECT_TRUE(seen.insert(changed.Compute().ToHex()).second);
  }
  const BlockKey root = base.Compute();
  std::vector<int32_t> tokens(16, 5);
  seen = {NextBlockKey(root, "", tokens).ToHex()};
  EXPECT_TRUE(seen.insert(NextBlockKey(root, "v", tokens).ToHex()).second);
  for (int32_t& token : tokens) {
    token += 1 << 20;
    EXPECT_TRUE(seen.insert(NextBlockKey(root, "", tokens).ToHex()).second);
    token -= 1 << 20;
  }
}

TEST(BlockKey, PrefixIsTheFirstEightBytes) {
  BlockKey key;
  for (int i = 0; i < 32; ++i) key.bytes[i] = static_cast<uint8_t>(i + 1);
  EXPECT_EQ(key.prefix(), 0x0807060504030201u);
  EXPECT_EQ(BlockKeyHash()(key), key.prefix());
  EXPECT_EQ(key.ToHex().substr(0, 8), "01020304");
  EXPECT_EQ(key.ToHex().size(), 64u);
}

}  // namespace
}  // namespace quire
