#include "common/text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>

#include "common/text/unicode.h"

namespace quire {
namespace {

// A vocabulary of byte strings with merges in any order, good or bad.
struct Vocab {
  std::vector<std::string> tokens;
  std::map<std::string, TokenId> ids;
  std::vector<std::pair<TokenId, TokenId>> merges;  // by rank

  TokenId IdOf(const std::string& bytes) {
    const auto [it, is_new] = ids.emplace(bytes, static_cast<TokenId>(tokens.size()));
    if (is_new) tokens.push_back(bytes);
    return it->second;
  }

  BpeMerger Merger(const std::set<int>& missing_bytes = {}) {
    BpeMerger merger;
    std::array<TokenId, 256> byte_ids;
    for (int b = 0; b < 256; ++b) {
      byte_ids[b] =
          missing_bytes.count(b) ? BpeMerger::kNoToken : IdOf(std::string(1, static_cast<char>(b)));
    }
    merger.SetByteTokens(byte_ids);
    merger.Reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const auto& [left, right] = merges[rank];
      uint32_t existing = 0;
      EXPECT_TRUE(merger.AddMerge(left, right, static_cast<uint32_t>(rank),
                                  IdOf(tokens[left] + tokens[right]), &existing));
    }
    std::vector<unsigned char> first_bytes;
    for (const std::string& token : tokens) {
      first_bytes.push_back(static_cast<unsigned char>(token[0]));
    }
    merger.Finish(first_bytes);
    return merger;
  }

  // The definition: join the pair with the lowest rank, leftmost first, until there is none.
  std::vector<TokenId> Naive(std::vector<TokenId> parts) {
    std::map<std::pair<TokenId, TokenId>, size_t> ranks;
    for (size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;
    for (;;) {
      size_t best = SIZE_MAX, best_rank = SIZE_MAX;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto it = ranks.find({parts[i], parts[i + 1]});
        if (it != ranks.end() && it->second < best_rank) {
          best = i;
          best_rank = it->second;
        }
      }
      if (best == SIZE_MAX) return parts;
      parts[best] = IdOf(tokens[parts[best]] + tokens[parts[best + 1]]);
      parts.erase(parts.begin() + static_cast<int>(best) + 1);
    }
  }
  std::vector<TokenId> NaiveOf(const std::string& text, const std::set<int>& missing = {}) {
    std::vector<TokenId> parts;
    for (const char c : text) {
      if (!missing.count(static_cast<unsigned char>(c))) parts.push_back(IdOf(std::string(1, c)));
    }
    return Naive(std::move(parts));
  }
};

uint64_t Seed() {
  const char* given = std::getenv("TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261201;
  testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

// Few characters of each length that share bytes, so that merges meet in every way.
const std::vector<std::string> kChars = {"a",      "b",      "\u00e9",     "\u00e8",
                                         "\u0102", "\u4e2d", "\u4e2e",     "\u6587",
                                         "\u65b7", "\u2014", "\U0001f642", "\U0001f602"};

std::string RandomText(std::mt19937_64& rng, size_t max_chars) {
  std::string text;
  for (size_t n = rng() % (max_chars + 1); n > 0; --n) text += kChars[rng() % kChars.size()];
  return text;
}

// `order` 0: as found (a trained vocabulary: parts come before what is made of them), 1: any order.
Vocab RandomVocab(std::mt19937_64& rng, int order) {
  Vocab vocab;
  for (int b = 0; b < 256; ++b) vocab.IdOf(std::string(1, static_cast<char>(b)));
  std::set<std::pair<TokenId, TokenId>> seen;
  const size_t wanted = 10 + rng() % 150;
  for (size_t tries = 0; tries < 2000 && vocab.merges.size() < wanted; ++tries) {
    // Two neighbours in what merging makes of a text so far.
    const std::vector<TokenId> parts = vocab.NaiveOf(RandomText(rng, 6));
    if (parts.size() < 2) continue;
    const size_t i = rng() % (parts.size() - 1);
    if (!seen.insert({parts[i], parts[i + 1]}).second) continue;
    vocab.IdOf(vocab.tokens[parts[i]] + vocab.tokens[parts[i + 1]]);
    vocab.merges.emplace_back(parts[i], parts[i + 1]);
    if (order == 1 && rng() % 4 == 0) std::shuffle(vocab.merges.begin(), vocab.merges.end(), rng);
  }
  return vocab;
}

TEST(BpeMerger, EqualsTheDefinitionForAnyMerges) {
  std::mt19937_64 rng(Seed());
  int whole = 0;
  for (int round = 0; round < 120; ++round) {
    Vocab vocab = RandomVocab(rng, round % 2);
    const std::set<int> missing = round % 5 == 4 ? std::set<int>{0xC3, 0xF0} : std::set<int>{};
    const BpeMerger merger = vocab.Merger(missing);
    for (const std::string& c : kChars) {
      whole += c.size() > 1 && merger.WholeChar(DecodeValidUtf8(c.data()).value) >= 0;
    }
    BpeScratch scratch;
    for (int i = 0; i < 20; ++i) {
      const std::string text = RandomText(rng, i == 0 ? 160 : 14);
      SCOPED_TRACE(testing::Message() << "round " << round << " text " << text);
      const std::vector<TokenId> want = vocab.NaiveOf(text, missing);
      std::vector<TokenId> bytes, chars;
      merger.MergeBytes(text, scratch, bytes);
      merger.MergeText(text, scratch, chars);
      ASSERT_EQ(bytes, want);
      ASSERT_EQ(chars, want);
    }
  }
  EXPECT_GT(whole, 100);  // or the shortcut was not tried
}

TEST(BpeMerger, LongPiecesOfEqualBytes) {
  Vocab vocab;
  std::string token = "a";
  for (int i = 0; i < 5; ++i) {
    const TokenId id = vocab.IdOf(token);
    token += token;
    vocab.IdOf(token);
    vocab.merges.emplace_back(id, id);
  }
  const BpeMerger merger = vocab.Merger();
  BpeScratch scratch;
  for (const size_t n : {0, 1, 2, 31, 32, 33, 95, 96, 97, 98, 127, 129, 300}) {
    SCOPED_TRACE(n);
    std::vector<TokenId> got;
    merger.MergeText(std::string(n, 'a'), scratch, got);
    EXPECT_EQ(got, vocab.NaiveOf(std::string(n, 'a')));
  }
  std::vector<TokenId> got;
  merger.MergeText(std::string(1 << 20, 'a'), scratch, got);
  EXPECT_EQ(got, std::vector<TokenId>((1 << 20) / 32, vocab.IdOf(token)));
}

TEST(BpeMerger, WithoutMergesBytesStay) {
  Vocab vocab;
  const BpeMerger merger = vocab.Merger();
  BpeScratch scratch;
  std::vector<TokenId> got;
  merger.MergeText("\u00e9", scratch, got);
  EXPECT_EQ(got, vocab.NaiveOf("\u00e9"));
}

}  // namespace
}  // namespace quire
