#include "common/text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "common/text/text_test_data.h"
#include "common/text/unicode.h"

namespace quire {
namespace {

// A tokenizer whose tokens are given byte strings; only decoding is used.
class BytesTokenizer final : public Tokenizer {
 public:
  explicit BytesTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  std::vector<TokenId> Encode(std::string_view, const EncodeOptions&) const override { return {}; }
  std::string DecodeBytes(std::span<const TokenId> ids, bool skip) const override {
    std::string out;
    for (const TokenId id : ids) {
      if (!skip || !IsSpecial(id)) out += TokenBytes(id);
    }
    return out;
  }
  std::string_view TokenBytes(TokenId id) const override {
    return id < 0 || id >= vocab_size() ? std::string_view() : tokens_[static_cast<size_t>(id)];
  }
  bool IsSpecial(TokenId id) const override { return id == 0; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }
  std::optional<TokenId> eos_id() const override { return std::nullopt; }
  std::optional<TokenId> FindToken(std::string_view) const override { return std::nullopt; }
  const std::string& chat_template() const override { return empty_; }

 private:
  std::vector<std::string> tokens_;
  std::string empty_;
};

TEST(IncrementalDetokenizer, DeltasJoinedAreDecode) {
  std::mt19937_64 rng(20261201);
  // Cuts of characters, stray bytes, whole characters, long tokens, nothing at all.
  const BytesTokenizer tokenizer(
      {"<special>", "",         "a",          "\xf0",       "\x9f", "\x99", "\x82",
       "\xf0\x9f",  "\x99\x82", "\xe2\x82",   "\xac",       "\xed", "\xa0", "\x80",
       "\xc3",      "\xa9",     "\u4e2d\xe6", "\x96\x87 x", "\xff", "\xf4", "\x90"});
  for (int round = 0; round < 3000; ++round) {
    std::vector<TokenId> ids;
    for (size_t n = rng() % 12; n > 0; --n) {
      ids.push_back(static_cast<TokenId>(rng() % 23) - 1);  // -1 and 21 are outside
    }
    for (const bool skip : {false, true}) {
      IncrementalDetokenizer detokenizer(tokenizer, skip);
      std::string text, bytes;
      for (const TokenId id : ids) {
        const std::string delta = detokenizer.Add(id);
        EXPECT_TRUE(IsValidUtf8(delta));
        text += delta;
        if (!skip || !tokenizer.IsSpecial(id)) bytes += tokenizer.TokenBytes(id);
        // Nothing is held back but the start of a character that may still become one.
        size_t pos = 0;
        while (pos < bytes.size()) {
          const Utf8Part part = NextUtf8Part(std::string_view(bytes).substr(pos));
          if (part.kind == Utf8Part::Kind::kIncomplete) break;
          pos += part.size;
        }
        ASSERT_EQ(text, ReplaceInvalidUtf8(bytes.substr(0, pos)));
      }
      text += detokenizer.Flush();
      ASSERT_EQ(text, tokenizer.Decode(ids, skip)) << "round " << round;
      EXPECT_EQ(detokenizer.Flush(), "");
    }
  }
}

TEST(IncrementalDetokenizer, RealTokenizerRandomIds) {
  const Tokenizer& qwen3 = test::RealTokenizer("tokenizer_qwen3");
  std::mt19937_64 rng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    for (int i = 0; i < 40; ++i) ids.push_back(static_cast<TokenId>(rng() % 151936));
    IncrementalDetokenizer detokenizer(qwen3);
    std::string text;
    for (const TokenId id : ids) text += detokenizer.Add(id);
    ASSERT_EQ(text + detokenizer.Flush(), qwen3.Decode(ids, true));
  }
}

// Character by character: the stop that is complete first, of those that end together the longest.
struct NaiveStops {
  std::vector<std::string> stops;
  std::string text;  // all so far
  size_t given = 0;

  StopMatcher::Result Add(std::string_view more) {
    StopMatcher::Result result;
    for (const char c : more) {
      text += c;
      std::optional<int32_t> best;
      for (size_t i = 0; i < stops.size(); ++i) {
        if (stops[i].empty() || !text.ends_with(stops[i])) continue;
        if (text.size() - stops[i].size() < given) continue;
        if (!best || stops[i].size() > stops[static_cast<size_t>(*best)].size()) {
          best = static_cast<int32_t>(i);
        }
      }
      if (best) {
        const size_t end = text.size() - stops[static_cast<size_t>(*best)].size();
        result.text = text.substr(given, end - given);
        result.stop_index = best;
        return result;
      }
    }
    size_t keep = 0;
    for (const std::string& stop : stops) {
      for (size_t n = 1; n < stop.size() && n <= text.size() - given; ++n) {
        if (text.ends_with(stop.substr(0, n))) keep = std::max(keep, n);
      }
    }
    result.text = text.substr(given, text.size() - keep - given);
    given = text.size() - keep;
    return result;
  }
};

TEST(StopMatcher, EqualsTheNaiveModel) {
  std::mt19937_64 rng(20261201);
  const auto random_text = [&](size_t max, int letters) {
    std::string text;
    for (size_t n = rng() % (max + 1); n > 0; --n) {
      text += static_cast<char>('a' + static_cast<int>(rng() % static_cast<uint64_t>(letters)));
    }
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 4000; ++round) {
    const int letters = 1 + static_cast<int>(rng() % 3);
    NaiveStops naive;
    for (size_t n = rng() % 5; n > 0; --n) naive.stops.push_back(random_text(5, letters));
    StopMatcher matcher(naive.stops);
    std::string given;
    bool stopped = false;
    for (int i = 0; i < 12 && !stopped; ++i) {
      const std::string piece = random_text(4, letters);
      const StopMatcher::Result want = naive.Add(piece);
      const StopMatcher::Result got = matcher.Add(piece);
      ASSERT_EQ(got.text, want.text) << "round " << round;
      ASSERT_EQ(got.stop_index, want.stop_index) << "round " << round;
      given += got.text;
      stopped = got.stop_index.has_value();
    }
    matches += stopped;
    if (!stopped) {
      EXPECT_EQ(given + matcher.Flush(), naive.text);
    }
  }
  EXPECT_GT(matches, 1000);
}

TEST(StopMatcher, CopiesGoTheirOwnWays) {  // n > 1 choices share the automaton
  StopMatcher first({"abc"});
  EXPECT_EQ(first.Add("xab").text, "x");
  StopMatcher second = first;
  EXPECT_EQ(first.Add("c").stop_index, 0);
  EXPECT_EQ(second.Add("d").text, "abd");
}

TEST(StopMatcher, NoStopsAndEmptyOnesHoldNothing) {
  StopMatcher none({});
  EXPECT_EQ(none.Add("abc").text, "abc");
  StopMatcher empty({"", ""});
  EXPECT_EQ(empty.Add("abc").text, "abc");
  EXPECT_EQ(empty.Flush(), "");
  StopMatcher twice({"x", "x"});
  EXPECT_EQ(twice.Add("ax").stop_index, 0);
}

}  // namespace
}  // namespace quire
