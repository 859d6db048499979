#include "kernels/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/impl_testing.h"
#include "kernels/swiglu/swiglu_rows.h"

namespace quire {
namespace {

using test::RunOn;

absl::Status RunSimulated(const SwigluArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateSwiglu(args));
  avx512sim::SwigluRows(args, 0, args.num_tokens);
  return absl::OkStatus();
}

std::vector<Impl<SwigluArgs>> Runnable() { return test::Runnable(SwigluImpls(), RunSimulated); }

std::vector<float> Gaussian(std::mt19937_64& rng, int64_t n, float scale) {
  std::normal_distribution<float> dist(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = dist(rng);
  return v;
}

struct Case {
  const char* name;
  int64_t num_tokens, inner, x_stride, y_stride;
};
constexpr Case kCases[] = {
    {"no_tokens", 0, 64, 128, 64},          {"one_element", 1, 1, 2, 1},
    {"below_a_vector", 3, 15, 33, 17},      {"one_vector", 2, 16, 32, 16},
    {"above_a_vector", 3, 17, 34, 17},      {"smollm2", 2, 1536, 3072, 1536},
    {"prefill_0_6b", 50, 3072, 6144, 3072},
};

TEST(Swiglu, MatchesReferenceAndAllVariantsAgreeBitForBit) {
  std::mt19937_64 rng(1);
  for (const Case& c : kCases) {
    std::vector<float> x = Gaussian(rng, c.num_tokens * c.x_stride, 6);
    for (int64_t t = 0; t < c.num_tokens; ++t) {  // padding that is read will show
      for (int64_t i = 2 * c.inner; i < c.x_stride; ++i) x[t * c.x_stride + i] = NAN;
    }
    std::vector<float> want(c.num_tokens * c.y_stride, -7), first;
    SwigluArgs args{x.data(), c.x_stride, want.data(), c.y_stride, c.num_tokens, c.inner};
    const std::vector<Impl<SwigluArgs>> impls = Runnable();
    ASSERT_TRUE(impls[0].reference);
    ASSERT_TRUE(RunOn(impls[0], args).ok());
    for (size_t k = 1; k < impls.size(); ++k) {
      SCOPED_TRACE(testing::Message() << c.name << " on " << impls[k].name);
      std::vector<float> got(want.size(), -7);  // what is written outside of rows will show
      args.y = got.data();
      ASSERT_TRUE(RunOn(impls[k], args, 3).ok());
      for (size_t i = 0; i < got.size(); ++i) {
        // exp is off by 1.1 ulp, four operations by half of one each.
        ASSERT_NEAR(got[i], want[i], 8 * 0x1p-24f * std::abs(want[i]) + 0x1p-149f) << i;
      }
      if (first.empty()) first = got;
      ASSERT_EQ(first, got);
    }
  }
}

TEST(Swiglu, ExtremeGatesGiveTheLimits) {
  const float gates[] = {0, 1, -1, 88, -88, 89, -89, 104, -104, 1e30f, -1e30f, -3e38f, 3e38f};
  constexpr int64_t n = std::size(gates);
  float x[2 * n], y[n];
  for (int64_t i = 0; i < n; ++i) x[i] = gates[i], x[n + i] = 0.5f;
  for (const Impl<SwigluArgs>& impl : Runnable()) {
    ASSERT_TRUE(RunOn(impl, SwigluArgs{x, 2 * n, y, n, 1, n}).ok());
    for (int64_t i = 0; i < n; ++i) {
      const double gate = gates[i];
      const double want = gate / (1 + std::exp(-gate)) * 0.5;
      // From -88 down exp(-gate) nears the largest float, and then the result is 0: below 2^-120.
      EXPECT_NEAR(y[i], want, 1e-6 * std::abs(want) + 1e-36) << impl.name << " gate " << gates[i];
    }
  }
}

TEST(Swiglu, NanStaysInItsElement) {
  for (const Impl<SwigluArgs>& impl : Runnable()) {
    std::vector<float> x(2 * 40, 1.0f), y(40);
    x[3] = NAN;
    x[40 + 35] = NAN;
    ASSERT_TRUE(RunOn(impl, SwigluArgs{x.data(), 80, y.data(), 40, 1, 40}).ok());
    for (int i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(y[i]), i == 3 || i == 35) << impl.name << i;
  }
}

TEST(Swiglu, RowDependsOnNothingButItself) {
  std::mt19937_64 rng(2);
  const int64_t tokens = 120, inner = 1536;  // enough to fork
  const std::vector<float> x = Gaussian(rng, tokens * 2 * inner, 2);
  for (const Impl<SwigluArgs>& impl : Runnable()) {
    std::vector<float> all(tokens * inner), one(inner), shifted(2 * inner + 3);
    ASSERT_TRUE(
        RunOn(impl, SwigluArgs{x.data(), 2 * inner, all.data(), inner, tokens, inner}, 4).ok());
    for (int64_t t : {0, 77, 119}) {
      std::memcpy(shifted.data() + 3, x.data() + t * 2 * inner, 2 * inner * sizeof(float));
      ASSERT_TRUE(
          RunOn(impl, SwigluArgs{shifted.data() + 3, 2 * inner + 1, one.data(), inner, 1, inner})
              .ok());
      EXPECT_EQ(std::memcmp(one.data(), all.data() + t * inner, inner * sizeof(float)), 0);
    }
  }
}

TEST(Swiglu, RefusesBadArguments) {
  float x[8] = {}, y[8] = {};
  const struct {
    SwigluArgs args;
    const char* names;
  } bad[] = {
      {{x, 8, y, 4, -1, 4}, "num_tokens is -1"}, {{x, 8, y, 4, 1, 0}, "inner is 0"},
      {{x, 7, y, 4, 1, 4}, "x_stride is 7"},     {{x, 8, y, 3, 1, 4}, "y_stride is 3"},
      {{nullptr, 8, y, 4, 1, 4}, "x is null"},   {{x, 8, nullptr, 4, 1, 4}, "y is null"},
  };
  for (const auto& b : bad) {
    for (const Impl<SwigluArgs>& impl : Runnable()) {
      const absl::Status status = RunOn(impl, b.args);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << b.names;
      EXPECT_NE(std::string(status.message()).find(b.names), std::string::npos) << status;
    }
  }
  EXPECT_TRUE(RunOn(SwigluImpls()[1], SwigluArgs{x, 8, y, 4, 1, 4}).ok());
}

}  // namespace
}  // namespace quire
