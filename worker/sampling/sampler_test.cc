#include "worker/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "worker/sampling/philox.h"

namespace quire {
namespace {

const LogitsKernels& Kernels() { return GetLogitsKernels(DetectIsa()); }

TEST(Philox, KnownAnswers) {  // from the authors' published test vectors
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t f = 0xffffffff;
  EXPECT_EQ(Philox4x32({f, f, f, f}, {f, f}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterUniform, LiesInRangeAndDependsOnEachArgument) {
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = CounterUniform(42, 3, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ASSERT_EQ(u, CounterUniform(42, 3, i));
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // 5 sigma
  std::set<double> seen;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    for (uint32_t stream : {0u, 1u}) {
      for (uint64_t counter : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
        EXPECT_TRUE(seen.insert(CounterUniform(seed, stream, counter)).second);
      }
    }
  }
}

// ---- The model `table` of the public cases: logits depend on the last token only ----

constexpr int32_t kVocab = 320, kEnd = 266, kEndOfText = 264;

std::vector<float> TableLogits(int32_t last) {
  std::vector<float> x(kVocab, -30);
  const auto set = [&x](std::initializer_list<std::pair<int32_t, float>> row) {
    for (const auto& [token, value] : row) x[token] = value;
  };
  if (last == 65 || (last >= 97 && last <= 100)) {
    set({{97, 2.0f}, {98, 1.0f}, {99, 0.0f}, {100, -1.0f}});
  } else if (last == 66) {
    set({{97, -0.5f}, {98, -0.6f}, {99, -3.0f}});
  } else if (last == 67) {
    set({{97, 2.0f}, {98, 1.5f}, {99, 0.5f}});
  } else if (last == 69) {
    set({{kEnd, 4.0f}, {kEndOfText, 3.0f}, {97, 2.0f}, {98, 1.0f}});
  } else {
    set({{kEnd, 20.0f}});
  }
  return x;
}

using Change = std::function<void(SamplingParams&)>;

struct Generated {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> sampled;
};

// What a worker does with one choice, without stopping at end tokens.
Generated Generate(const std::vector<int32_t>& prompt, int count, const Change& change,
                   int32_t choice = 0, const LogitsKernels& kernels = Kernels()) {
  auto params = std::make_shared<SamplingParams>();
  change(*params);
  EXPECT_TRUE(ValidateSamplingParams(*params, kVocab).ok());
  SamplerSlot slot(params, choice, {kEnd, kEndOfText}, prompt, kVocab);
  Generated run;
  int32_t last = prompt.back();
  for (int i = 0; i < count; ++i) {
    std::vector<float> logits = TableLogits(last);
    run.sampled.push_back(slot.Sample(logits.data(), kVocab, i, kernels));
    last = run.sampled.back().token;
    EXPECT_GE(last, 0);
    if (last < 0) break;
    run.tokens.push_back(last);
    slot.Record(last);
  }
  return run;
}

using Ids = std::vector<int32_t>;

TEST(PublicCases, TopKBeyondVocab) {
  const auto run = [](int64_t top_k) {
    return Generate({65}, 64, [top_k](auto& p) { p.seed = 5, p.top_k = top_k; }).tokens;
  };
  const Ids want = run(0);
  EXPECT_GT(std::set<int32_t>(want.begin(), want.end()).size(), 1u);  // it does sample
  for (int64_t k : {int64_t{320}, int64_t{321}, int64_t{9999999}, int64_t{2147483647}}) {
    EXPECT_EQ(run(k), want) << k;
  }
  EXPECT_EQ(run(1), Ids(64, 97));
  EXPECT_EQ(run(319), want);  // cutting what is never drawn changes no draw
}

TEST(PublicCases, TopPZero) {
  for (uint64_t seed : {0, 1, 2}) {
    for (float top_p : {0.0f, 1e-30f, 0.0001f}) {
      EXPECT_EQ(Generate({65}, 8, [&](auto& p) { p.seed = seed, p.top_p = top_p; }).tokens,
                Ids(8, 97))
          << "seed " << seed << " top_p " << top_p;
    }
  }
}

TEST(PublicCases, TinyTemperature) {
  for (float t : {0.001f, 1e-5f, 1e-6f, 1e-7f, 1e-12f, 1e-38f, 1e-45f}) {
    EXPECT_EQ(Generate({65}, 6, [&](auto& p) { p.seed = 3, p.temperature = t; }).tokens, Ids(6, 97))
        << t;
  }
}

TEST(PublicCases, RepetitionPresenceAndFrequencyPenalty) {
  const Change repetition = [](auto& p) { p.temperature = 0, p.repetition_penalty = 2; };
  EXPECT_EQ(Generate({97, 66}, 1, repetition).tokens, Ids{98});
  EXPECT_EQ(Generate({66}, 1, repetition).tokens, Ids{97});
  EXPECT_EQ(Generate({97, 67}, 1, repetition).tokens, Ids{98});
  EXPECT_EQ(
      Generate({97, 67}, 5, [](auto& p) { p.temperature = 0, p.presence_penalty = 2.5f; }).tokens,
      (Ids{97, 98, 99, 97, 97}));
  EXPECT_EQ(
      Generate({97, 97, 97, 67}, 1, [](auto& p) { p.temperature = 0, p.frequency_penalty = 1; })
          .tokens,
      Ids{97});
}

TEST(PublicCases, LogitBias) {
  const auto run = [](const Ids& prompt, int count, std::vector<std::pair<int32_t, float>> bias) {
    return Generate(prompt, count, [&](auto& p) { p.temperature = 0, p.logit_bias = bias; }).tokens;
  };
  EXPECT_EQ(run({65}, 1, {{97, -100}}), Ids{98});
  EXPECT_EQ(run({65}, 1, {{100, 100}}), Ids{100});
  EXPECT_EQ(run({65}, 1, {{99, 100}, {100, 100}}), Ids{99});
  EXPECT_EQ(run({65}, 1, {{122, 100}}), Ids{122});
  EXPECT_EQ(run({65}, 1, {{97, -1.5f}}), Ids{98});
  EXPECT_EQ(run({69}, 2, {{264, -100}, {266, -100}}), (Ids{97, 97}));
}

TEST(PublicCases, NChoices) {
  const auto run = [](int32_t choice, uint64_t seed) {
    return Generate(
               {65}, 32, [&](auto& p) { p.seed = seed, p.n = 4; }, choice)
        .tokens;
  };
  std::set<Ids> different;
  for (int32_t choice = 0; choice < 4; ++choice) {
    EXPECT_EQ(run(choice, 7), run(choice, 7));
    different.insert(run(choice, 7));
  }
  EXPECT_EQ(different.size(), 4u);
  EXPECT_EQ(Generate({65}, 32, [](auto& p) { p.seed = 7; }).tokens, run(0, 7));
  EXPECT_NE(run(0, 7), run(0, 8));
  for (int32_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(Generate(
                  {65}, 8, [](auto& p) { p.temperature = 0; }, choice)
                  .tokens,
              Ids(8, 97));
  }
}

TEST(PublicCases, LogprobsAreRaw) {
  const Change runs[] = {
      [](auto& p) { p.temperature = 0; },
      [](auto& p) { p.temperature = 1; },
      [](auto& p) { p.temperature = 0.2f; },
      [](auto& p) { p.temperature = 5; },
      [](auto& p) { p.top_k = 1; },
      [](auto& p) { p.top_p = 0.5f; },
      [](auto& p) {
        p.temperature = 0, p.logit_bias = {{98, 100}};
      },
      [](auto& p) { p.repetition_penalty = 5, p.presence_penalty = 3, p.min_p = 0.3f; },
  };
  const float want[] = {-0.44019f, -1.44019f, -2.44019f, -3.44019f};
  for (size_t r = 0; r < std::size(runs); ++r) {
    const SampledToken got = Generate({65}, 1, [&](auto& p) {
                               p.seed = 1, p.num_logprobs = 4;
                               runs[r](p);
                             }).sampled[0];
    ASSERT_EQ(got.top.size(), 4u) << r;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(got.top[i].token, 97 + i) << r;
      EXPECT_NEAR(got.top[i].logprob, want[i], 2e-4) << r;
    }
    if (got.token >= 97 && got.token <= 100) {
      EXPECT_EQ(got.logprob, got.top[got.token - 97].logprob) << r;
    } else {  // a temperature of 5 may reach the floor
      EXPECT_NEAR(got.logprob, -32.44019f, 2e-4) << r;
    }
    if (r == 6) {
      EXPECT_EQ(got.token, 98);
    }
  }
}

// ---- Siblings ----

TEST(Sampler, LogprobsOfNoneAndOfTheChosenAlone) {
  const SampledToken none = Generate({65}, 1, [](auto& p) { p.temperature = 0; }).sampled[0];
  EXPECT_EQ(none.logprob, 0);
  EXPECT_TRUE(none.top.empty());
  const SampledToken chosen =
      Generate({65}, 1, [](auto& p) { p.temperature = 0, p.num_logprobs = 0; }).sampled[0];
  EXPECT_NEAR(chosen.logprob, -0.44019f, 2e-4);
  EXPECT_TRUE(chosen.top.empty());
}

TEST(Sampler, PenaltiesCountOutputOnly) {
  // frequency: 97 loses 0.6 a time; 2.0, 1.4, 0.8 < 1.0 of token 98.
  EXPECT_EQ(
      Generate({65}, 4, [](auto& p) { p.temperature = 0, p.frequency_penalty = 0.6f; }).tokens,
      (Ids{97, 97, 98, 97}));
  // A negative one rewards.
  EXPECT_EQ(Generate({66}, 3, [](auto& p) { p.temperature = 0, p.presence_penalty = -1; }).tokens,
            Ids(3, 97));
}

TEST(Sampler, RepetitionPenaltyCountsOutputAndBelowOneRewards) {
  EXPECT_EQ(Generate({65}, 3, [](auto& p) { p.temperature = 0, p.repetition_penalty = 4; }).tokens,
            (Ids{97, 98, 97}));  // 2 -> 97; then 0.5 < 1 -> 98; then 0.5 > 0.25 -> 97
  EXPECT_EQ(Generate({98, 65}, 1, [](auto& p) { p.temperature = 0, p.repetition_penalty = 0.25f; })
                .tokens,
            Ids{98});
}

TEST(Sampler, BiasComesBeforePenalties) {
  // 98: (1 + 4) / 3 = 1.67 < 2 of 97. The other way round it would be 1 / 3 + 4.
  EXPECT_EQ(Generate({98, 65}, 1,
                     [](auto& p) {
                       p.temperature = 0, p.repetition_penalty = 3;
                       p.logit_bias = {{98, 4}};
                     })
                .tokens,
            Ids{97});
}

TEST(Sampler, MinTokensBansEndTokensUntilThen) {
  for (float temperature : {0.0f, 1.0f}) {
    const Ids tokens = Generate({69}, 3, [&](auto& p) {
                         p.temperature = temperature, p.min_tokens = 2;
                         p.top_k = 1;
                         p.logit_bias = {{kEnd, 50}};
                       }).tokens;
    EXPECT_EQ(tokens, (Ids{97, 97, kEnd})) << temperature;
  }
}

TEST(Sampler, EveryTokenBannedStillGivesOne) {
  auto params = std::make_shared<SamplingParams>();
  params->min_tokens = 1;
  SamplerSlot slot(params, 0, {0, 1, 2, 7, -1}, {}, 3);
  std::vector<float> logits = {1, 2, 3};
  EXPECT_EQ(slot.Sample(logits.data(), 3, 0, Kernels()).token, 0);
}

TEST(Sampler, NotFiniteLogitsGiveNoToken) {
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    for (float temperature : {0.0f, 1.0f}) {
      auto params = std::make_shared<SamplingParams>();
      params->temperature = temperature;
      params->num_logprobs = 2;
      SamplerSlot slot(params, 0, {}, {}, kVocab);
      std::vector<float> logits = TableLogits(65);
      logits[250] = bad;
      EXPECT_EQ(slot.Sample(logits.data(), kVocab, 0, Kernels()).token, -1);
      EXPECT_EQ(ScoreToken(logits.data(), kVocab, 97, 2, Kernels()).token, -1);
    }
  }
}

TEST(Sampler, AbsurdValuesGiveATokenOfTheVocabulary) {
  const float huge = 3e38f;
  const Change changes[] = {
      [=](auto& p) {
        p.logit_bias = {{1, huge}, {2, -huge}};
      },
      [=](auto& p) { p.repetition_penalty = 1e-38f; },
      [=](auto& p) { p.repetition_penalty = huge; },
      [=](auto& p) { p.presence_penalty = huge, p.frequency_penalty = huge; },
      [=](auto& p) { p.presence_penalty = -huge, p.frequency_penalty = huge; },
      [=](auto& p) { p.temperature = huge; },
      [=](auto& p) { p.temperature = huge, p.top_p = 0.5f; },
      [=](auto& p) {
        p.temperature = 1e-6f, p.logit_bias = {{1, huge}, {2, -huge}};
      },
  };
  for (const Change& change : changes) {
    for (int32_t token : Generate({97, 65}, 20, change).tokens) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, kVocab);
    }
  }
}

TEST(Sampler, EqualLogitsGoToTheLowerToken) {
  for (int64_t top_k : {0, 3, 100}) {
    auto params = std::make_shared<SamplingParams>();
    params->top_k = top_k;
    params->top_p = 1e-9f;
    SamplerSlot slot(params, 0, {}, {}, 500);
    std::vector<float> logits(500, 1.0f);
    EXPECT_EQ(slot.Sample(logits.data(), 500, 0, Kernels()).token, 0);
  }
  // Half of the mass of 500 equal tokens: the first 250; top_k 3 keeps 0, 1, 2.
  for (int64_t i = 0; i < 300; ++i) {
    auto params = std::make_shared<SamplingParams>();
    params->top_p = 0.5f;
    std::vector<float> logits(500, 1.0f);
    EXPECT_LT(SamplerSlot(params, 0, {}, {}, 500).Sample(logits.data(), 500, i, Kernels()).token,
              250);
    params = std::make_shared<SamplingParams>();
    params->top_k = 3;
    logits.assign(500, 1.0f);
    EXPECT_LT(SamplerSlot(params, 0, {}, {}, 500).Sample(logits.data(), 500, i, Kernels()).token,
              3);
  }
}

TEST(Sampler, DrawDependsOnSeedChoiceAndPositionOnly) {
  const Generated run = Generate({65}, 20, [](auto& p) { p.seed = 11; });
  auto params = std::make_shared<SamplingParams>();
  params->seed = 11;
  SamplerSlot resumed(params, 0, {}, {}, kVocab);  // no history: as after a preemption
  for (int i : {7, 19, 3}) {
    std::vector<float> logits = TableLogits(i == 0 ? 65 : run.tokens[i - 1]);
    EXPECT_EQ(resumed.Sample(logits.data(), kVocab, i, Kernels()).token, run.tokens[i]);
  }
}

TEST(Sampler, FollowsTheSoftmax) {
  // exp(2), exp(1), exp(0), exp(-1): 0.6439, 0.2369, 0.0871, 0.0321.
  const int n = 20000;
  std::map<int32_t, int> count;
  for (int32_t token : Generate({65}, n, [](auto& p) { p.seed = 99; }).tokens) ++count[token];
  const double want[] = {0.64391, 0.23688, 0.08714, 0.03206};
  for (int i = 0; i < 4; ++i) {
    const double sigma = std::sqrt(want[i] * (1 - want[i]) / n);
    EXPECT_NEAR(count[97 + i] / static_cast<double>(n), want[i], 5 * sigma) << i;
  }
  count.clear();  // temperature 0.5: exp(4) : exp(2) : 1 : exp(-2); top_k 2 leaves two
  for (int32_t token :
       Generate({65}, n, [](auto& p) { p.seed = 9, p.temperature = 0.5f, p.top_k = 2; }).tokens) {
    ++count[token];
  }
  EXPECT_EQ(count.size(), 2u);
  EXPECT_NEAR(count[97] / static_cast<double>(n), 1 / (1 + std::exp(-2.0)), 0.012);
}

// ---- Against a plain model on rows of every shape ----

struct PlainModel {
  // The kept tokens in ascending order with their weights.
  static std::vector<std::pair<int32_t, double>> Keep(const std::vector<float>& logits,
                                                      const SamplingParams& params) {
    const float max = *std::max_element(logits.begin(), logits.end());
    std::vector<float> weights = logits;
    std::vector<double> sums(logits.size() / kLogitsBlock + 1);
    GetLogitsKernels(Isa::kPortable)
        .exp_weights(weights.data(), static_cast<int64_t>(weights.size()), max,
                     1.0f / params.temperature, sums.data());
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    if (params.top_k > 0 && params.top_k < static_cast<int64_t>(order.size())) {
      order.resize(static_cast<size_t>(params.top_k));
    }
    double total = 0;
    for (int32_t token : order) total += weights[token];
    std::vector<std::pair<int32_t, double>> kept;
    double sum = 0;
    for (int32_t token : order) {
      if (!kept.empty() && weights[token] < params.min_p) break;
      kept.emplace_back(token, weights[token]);
      sum += weights[token];
      if (params.top_p < 1 && sum >= params.top_p * total) break;
    }
    std::sort(kept.begin(), kept.end());
    return kept;
  }
  static int32_t Draw(const std::vector<std::pair<int32_t, double>>& kept, double uniform) {
    double total = 0, sum = 0;
    for (const auto& [token, weight] : kept) total += weight;
    for (const auto& [token, weight] : kept) {
      sum += weight;
      if (sum > uniform * total) return token;
    }
    return kept.back().first;
  }
};

TEST(Sampler, MatchesThePlainModelOnEveryPath) {
  std::mt19937_64 rng(5);
  const int32_t vocab = 3000;
  const struct {
    const char* name;
    float temperature, top_p, min_p;
    int64_t top_k;
  } cases[] = {
      {"all", 1, 1, 0, 0},
      {"top_k", 1, 1, 0, 20},
      {"top_k_top_p", 0.6f, 0.95f, 0, 20},
      {"top_p", 1, 0.9f, 0, 0},
      {"top_p_flat", 3, 0.9f, 0, 0},
      {"top_p_nearly_all", 2, 0.9999f, 0, 0},
      {"min_p", 1, 1, 0.05f, 0},
      {"min_p_flat", 4, 1, 0.01f, 0},
      {"all_three", 1.5f, 0.8f, 0.02f, 600},
      {"top_k_large", 2, 1, 0, 2000},
      {"top_p_min_p", 3, 0.7f, 0.001f, 0},
      {"hot", 100, 0.99f, 0, 0},
  };
  for (float spread : {0.5f, 4.0f}) {
    std::normal_distribution<float> dist(0, spread);
    std::vector<float> row(vocab);
    for (float& x : row) x = dist(rng);
    for (int i = 0; i < 200; ++i) row[rng() % vocab] = 0.5f;  // ties
    for (const auto& c : cases) {
      auto params = std::make_shared<SamplingParams>();
      params->temperature = c.temperature, params->top_p = c.top_p, params->min_p = c.min_p;
      params->top_k = c.top_k, params->seed = 77;
      const auto kept = PlainModel::Keep(row, *params);
      std::set<int32_t> drawn;
      SamplerSlot slot(params, 2, {}, {}, vocab);
      for (int64_t i = 0; i < 60; ++i) {
        std::vector<float> logits = row;
        const int32_t got = slot.Sample(logits.data(), vocab, i, Kernels()).token;
        ASSERT_EQ(got, PlainModel::Draw(kept, CounterUniform(77, 2, i)))
            << c.name << " spread " << spread << " draw " << i << " of " << kept.size() << " kept";
        drawn.insert(got);
        logits = row;
        ASSERT_EQ(slot.Sample(logits.data(), vocab, i, GetLogitsKernels(Isa::kPortable)).token, got)
            << "instruction sets differ";
      }
      if (kept.size() > 20) {
        EXPECT_GT(drawn.size(), 3u) << c.name;
      }
    }
  }
}

TEST(ScoreToken, GivesRawLogprobAndTheLargest) {
  const std::vector<float> logits = TableLogits(65);
  const SampledToken got = ScoreToken(logits.data(), kVocab, 99, 2, Kernels());
  EXPECT_EQ(got.token, 99);
  EXPECT_NEAR(got.logprob, -2.44019f, 2e-4);
  ASSERT_EQ(got.top.size(), 2u);
  EXPECT_EQ(got.top[0].token, 97);
  EXPECT_EQ(got.top[1].token, 98);
  EXPECT_TRUE(ScoreToken(logits.data(), kVocab, 99, 0, Kernels()).top.empty());
}

}  // namespace
}  // namespace quire
