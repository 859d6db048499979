#include "kernels/sample/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/sample/logits_simd.h"

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Named {
  std::string name;
  const LogitsKernels* kernels;
};

// What this machine can run, and the simulated AVX-512 variant; not the reference.
std::vector<Named> Runnable() {
  std::vector<Named> list;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= DetectIsa()) list.push_back({IsaName(isa), &GetLogitsKernels(isa)});
  }
  if (DetectIsa() >= Isa::kAvx2) list.push_back({"avx512sim", &avx512sim::kLogitsKernels});
  return list;
}

std::vector<float> Gaussian(std::mt19937_64& rng, int64_t n, float scale) {
  std::normal_distribution<float> dist(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = dist(rng);
  return v;
}

constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 320, 1023, 1024, 1025, 2049, 49152};

TEST(Logits, ArgmaxFindsThePlantedMaximumAtEveryPlace) {
  std::mt19937_64 rng(1);
  for (const Named& k : Runnable()) {
    for (int64_t n : {int64_t{1}, int64_t{17}, int64_t{130}, int64_t{2100}}) {
      std::vector<float> x = Gaussian(rng, n, 3);
      for (int64_t at = 0; at < n; ++at) {
        const float old = x[at];
        x[at] = 100;
        ASSERT_EQ(k.kernels->argmax(x.data(), n), at) << k.name;
        ASSERT_EQ(k.kernels->argmax_finite(x.data(), n), at) << k.name;
        x[at] = old;
      }
    }
  }
}

TEST(Logits, ArgmaxMatchesReferenceWithTiesAndNan) {
  std::mt19937_64 rng(2);
  for (int64_t n : kSizes) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> x(n);
      for (float& v : x) {
        v = static_cast<float>(rng() % 7) - 3;  // many ties
        if (kind >= 1 && rng() % 3 == 0) v = NAN;
        if (kind >= 2 && rng() % 2 == 0) v = -kInf;
        if (kind == 3 && rng() % 50 == 0) v = kInf;
      }
      const int64_t want = ReferenceLogitsKernels().argmax(x.data(), n);
      const int64_t want_finite = ReferenceLogitsKernels().argmax_finite(x.data(), n);
      for (const Named& k : Runnable()) {
        ASSERT_EQ(k.kernels->argmax(x.data(), n), want) << k.name << " n " << n << " kind " << kind;
        ASSERT_EQ(k.kernels->argmax_finite(x.data(), n), want_finite) << k.name << " n " << n;
      }
    }
  }
}

TEST(Logits, ArgmaxOfNothingButNanIsNone) {
  for (const Named& k : Runnable()) {
    for (int64_t n : kSizes) {
      std::vector<float> x(n, NAN);
      EXPECT_EQ(k.kernels->argmax(x.data(), n), -1);
      x[n / 2] = -kInf;
      EXPECT_EQ(k.kernels->argmax(x.data(), n), n / 2);
    }
    const float zeros[] = {-1, -0.0f, 0.0f, -2};  // equal: the lower index
    EXPECT_EQ(k.kernels->argmax(zeros, 4), 1);
  }
}

TEST(Logits, AllFiniteSeesOneBadValueAnywhere) {
  std::mt19937_64 rng(3);
  for (const Named& k : Runnable()) {
    for (int64_t n : {1, 16, 31, 64, 200}) {
      std::vector<float> x = Gaussian(rng, n, 1e37f);
      x[0] = std::numeric_limits<float>::max();
      ASSERT_TRUE(k.kernels->all_finite(x.data(), n));
      for (int64_t at = 0; at < n; ++at) {
        for (float bad : {kInf, -kInf, static_cast<float>(NAN)}) {
          const float old = x[at];
          x[at] = bad;
          ASSERT_FALSE(k.kernels->all_finite(x.data(), n)) << k.name << " n " << n << " at " << at;
          ASSERT_EQ(k.kernels->argmax_finite(x.data(), n), -1);
          x[at] = old;
        }
      }
    }
  }
}

TEST(Logits, LogSumExpMatchesReferenceAndIsTheSameEverywhere) {
  std::mt19937_64 rng(4);
  for (int64_t n : kSizes) {
    for (float scale : {0.1f, 3.0f, 40.0f}) {
      const std::vector<float> x = Gaussian(rng, n, scale);
      const double want = ReferenceLogitsKernels().log_sum_exp(x.data(), n);
      const double first = Runnable()[0].kernels->log_sum_exp(x.data(), n);
      for (const Named& k : Runnable()) {
        const double got = k.kernels->log_sum_exp(x.data(), n);
        // x - m is rounded: relative to the largest difference, about 5 scale.
        ASSERT_NEAR(got, want, 1e-6 + 5 * scale * 0x1p-23) << k.name << " n " << n;
        ASSERT_EQ(got, first) << k.name << " n " << n;
      }
    }
  }
}

TEST(Logits, LogSumExpOfWhatIsNotFiniteIsNotFinite) {
  for (const Named& k : Runnable()) {
    const float with_nan[] = {1, NAN, 2}, with_inf[] = {1, kInf, 2}, only[] = {NAN, NAN};
    EXPECT_FALSE(std::isfinite(k.kernels->log_sum_exp(with_nan, 3)));
    EXPECT_FALSE(std::isfinite(k.kernels->log_sum_exp(with_inf, 3)));
    EXPECT_FALSE(std::isfinite(k.kernels->log_sum_exp(only, 2)));
    const float banned[] = {-kInf, 1.5f};
    EXPECT_NEAR(k.kernels->log_sum_exp(banned, 2), 1.5, 1e-7);
  }
}

TEST(Logits, ExpWeightsMatchReferenceAndAreTheSameEverywhere) {
  std::mt19937_64 rng(5);
  for (int64_t n : kSizes) {
    for (float inverse : {1.0f, 0.25f, 1e6f}) {
      std::vector<float> x = Gaussian(rng, n, 4);
      if (n > 2) x[1] = -kInf;
      const float max = x[ReferenceLogitsKernels().argmax(x.data(), n)];
      const int64_t blocks = (n + kLogitsBlock - 1) / kLogitsBlock;
      std::vector<float> want = x, first;
      std::vector<double> want_sums(blocks), first_sums;
      ReferenceLogitsKernels().exp_weights(want.data(), n, max, inverse, want_sums.data());
      for (const Named& k : Runnable()) {
        std::vector<float> got = x;
        std::vector<double> sums(blocks, -1);
        k.kernels->exp_weights(got.data(), n, max, inverse, sums.data());
        for (int64_t i = 0; i < n; ++i) {
          // The argument is rounded twice, exp adds about an ulp.
          const double argument = std::abs((static_cast<double>(x[i]) - max) * inverse);
          const double error = std::isinf(x[i]) ? 0 : (argument + 2) * 0x1p-22;
          ASSERT_NEAR(got[i], want[i], error * want[i] + 0x1p-148) << k.name << " " << i;
        }
        for (int64_t b = 0; b < blocks; ++b) {
          ASSERT_NEAR(sums[b], want_sums[b], 2e-5 * want_sums[b] + 1e-44);
        }
        if (first.empty()) first = got, first_sums = sums;
        ASSERT_EQ(got, first) << k.name;
        ASSERT_EQ(sums, first_sums) << k.name;
      }
    }
  }
}

TEST(Logits, TopKMatchesAStableSort) {
  std::mt19937_64 rng(6);
  for (int64_t n : kSizes) {
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<float> x = Gaussian(rng, n, 3);
      for (float& v : x) {
        if (kind == 1) v = std::floor(v);  // many ties
        if (kind == 2 && rng() % 3 == 0) v = rng() % 2 == 0 ? NAN : -kInf;
      }
      for (int64_t k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{20}, int64_t{100}, n, n + 5}) {
        if (n > 3000 && k > 1000) continue;
        std::vector<int32_t> want_i(k + 1, -9), got_i;
        std::vector<float> want_v(k + 1, -9), got_v;
        const int64_t want =
            ReferenceLogitsKernels().top_k(x.data(), n, k, want_i.data(), want_v.data());
        for (const Named& kernels : Runnable()) {
          got_i.assign(k + 1, -9);
          got_v.assign(k + 1, -9);
          ASSERT_EQ(kernels.kernels->top_k(x.data(), n, k, got_i.data(), got_v.data()), want);
          for (int64_t i = want; i <= k; ++i) {
            ASSERT_EQ(got_i[i], i < std::min(k, n) ? got_i[i] : -9);  // nothing behind min(k, n)
          }
          for (int64_t i = 0; i < want; ++i) {
            ASSERT_EQ(got_i[i], want_i[i]) << kernels.name << " n " << n << " k " << k << " " << i;
            ASSERT_EQ(got_v[i], want_v[i]);
          }
        }
      }
    }
  }
}

TEST(Logits, TopKOfSortedRows) {  // every value enters the heap, or none after the first k
  const int64_t n = 5000, k = 40;
  std::vector<float> up(n), down(n), values(k);
  std::vector<int32_t> indices(k);
  for (int64_t i = 0; i < n; ++i) up[i] = static_cast<float>(i), down[i] = static_cast<float>(-i);
  for (const Named& kernels : Runnable()) {
    ASSERT_EQ(kernels.kernels->top_k(up.data(), n, k, indices.data(), values.data()), k);
    for (int64_t i = 0; i < k; ++i) ASSERT_EQ(indices[i], n - 1 - i);
    ASSERT_EQ(kernels.kernels->top_k(down.data(), n, k, indices.data(), values.data()), k);
    for (int64_t i = 0; i < k; ++i) ASSERT_EQ(indices[i], i);
  }
}

TEST(Logits, TablesCarryTheirIsa) {
  EXPECT_EQ(GetLogitsKernels(Isa::kPortable).isa, Isa::kPortable);
  EXPECT_EQ(GetLogitsKernels(Isa::kAvx2).isa, Isa::kAvx2);
  EXPECT_EQ(GetLogitsKernels(Isa::kAvx512).isa, Isa::kAvx512);
}

}  // namespace
}  // namespace quire
