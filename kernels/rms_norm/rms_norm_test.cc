#include "kernels/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/impl_testing.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace quire {
namespace {

using test::RunOn;

absl::Status RunSimulated(const RmsNormArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateRmsNorm(args));
  avx512sim::RmsNormRows(args, 0, args.num_tokens);
  return absl::OkStatus();
}

std::vector<Impl<RmsNormArgs>> Runnable() { return test::Runnable(RmsNormImpls(), RunSimulated); }

std::vector<float> Gaussian(std::mt19937_64& rng, int64_t n, float scale = 1) {
  std::normal_distribution<float> dist(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = dist(rng);
  return v;
}

struct Case {
  const char* name;
  int64_t num_tokens, hidden, x_stride, y_stride;
};
constexpr Case kCases[] = {
    {"no_tokens", 0, 64, 64, 64},           {"one_element", 1, 1, 1, 1},
    {"below_a_vector", 3, 15, 15, 15},      {"one_vector", 2, 16, 16, 16},
    {"above_a_vector", 3, 17, 20, 18},      {"below_an_unroll", 2, 63, 63, 63},
    {"vectors_and_tail", 5, 129, 129, 131}, {"strided_rows", 4, 100, 133, 107},
    {"qk_norm_head", 24, 128, 128, 128},    {"decode_smollm2", 1, 576, 576, 576},
    {"prefill_0_6b", 70, 1024, 4096, 1024}, {"decode_8b", 2, 4096, 4096, 4096},
};

TEST(RmsNorm, MatchesReferenceAndAllVariantsAgreeBitForBit) {
  std::mt19937_64 rng(1);
  for (const Case& c : kCases) {
    std::vector<float> x = Gaussian(rng, c.num_tokens * c.x_stride, 3);
    for (int64_t t = 0; t < c.num_tokens; ++t) {  // padding that is read will show
      for (int64_t i = c.hidden; i < c.x_stride; ++i) x[t * c.x_stride + i] = NAN;
    }
    const std::vector<float> w = Gaussian(rng, c.hidden);
    std::vector<float> want(c.num_tokens * c.y_stride, -7), first;
    RmsNormArgs args{x.data(),   c.x_stride,   w.data(), want.data(),
                     c.y_stride, c.num_tokens, c.hidden, 1e-6f};
    const std::vector<Impl<RmsNormArgs>> impls = Runnable();
    ASSERT_TRUE(impls[0].reference);
    ASSERT_TRUE(RunOn(impls[0], args).ok());
    // 64 chains of n / 64 sums and 6 more; the root halves that, other steps add at most 6.
    const float max_relative_error = (c.hidden / 128 + 10) * 0x1p-24f;
    for (size_t k = 1; k < impls.size(); ++k) {
      SCOPED_TRACE(testing::Message() << c.name << " on " << impls[k].name);
      std::vector<float> got(want.size(), -7);  // what is written outside of rows will show
      args.y = got.data();
      ASSERT_TRUE(RunOn(impls[k], args, 3).ok());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], max_relative_error * std::abs(want[i])) << "element " << i;
      }
      if (first.empty()) first = got;
      if (!got.empty()) {
        ASSERT_EQ(std::memcmp(first.data(), got.data(), got.size() * sizeof(float)), 0);
      }
    }
  }
}

TEST(RmsNorm, RowDependsOnNothingButItself) {
  std::mt19937_64 rng(2);
  const int64_t tokens = 300, hidden = 576;  // enough to fork
  const std::vector<float> x = Gaussian(rng, tokens * hidden), w = Gaussian(rng, hidden);
  for (const Impl<RmsNormArgs>& impl : Runnable()) {
    SCOPED_TRACE(impl.name);
    std::vector<float> all(tokens * hidden), in_place = x, one(hidden), shifted(hidden + 1);
    RmsNormArgs args{x.data(), hidden, w.data(), all.data(), hidden, tokens, hidden, 1e-5f};
    ASSERT_TRUE(RunOn(impl, args, 4).ok());
    args.x = args.y = in_place.data();
    ASSERT_TRUE(RunOn(impl, args, 2).ok());
    EXPECT_EQ(all, in_place);
    for (int64_t t : {int64_t{0}, int64_t{101}, tokens - 1}) {
      std::memcpy(shifted.data() + 1, x.data() + t * hidden, hidden * sizeof(float));
      RmsNormArgs single{shifted.data() + 1, hidden + 5, w.data(), one.data(),
                         hidden + 9,         1,          hidden,   1e-5f};
      ASSERT_TRUE(RunOn(impl, single).ok());
      EXPECT_EQ(std::memcmp(one.data(), all.data() + t * hidden, hidden * sizeof(float)), 0);
    }
  }
}

TEST(RmsNorm, ZeroRowGivesZeroAndNanStaysInItsRow) {
  for (const Impl<RmsNormArgs>& impl : Runnable()) {
    SCOPED_TRACE(impl.name);
    std::vector<float> x(3 * 48, 0.0f), w(48, 2.0f), y(3 * 48, 5.0f);
    x[48 + 7] = NAN;
    x[96] = 1.0f;
    RmsNormArgs args{x.data(), 48, w.data(), y.data(), 48, 3, 48, 1e-6f};
    ASSERT_TRUE(RunOn(impl, args).ok());
    for (int i = 0; i < 48; ++i) EXPECT_EQ(y[i], 0.0f);
    for (int i = 0; i < 48; ++i) EXPECT_TRUE(std::isnan(y[48 + i]));
    EXPECT_NEAR(y[96], 2 * std::sqrt(48.0), 1e-3);
  }
}

TEST(RmsNorm, RefusesBadArguments) {
  float x[8] = {}, w[8] = {}, y[8] = {};
  const RmsNormArgs good{x, 8, w, y, 8, 1, 8, 1e-6f};
  const auto with = [&](auto change) {
    RmsNormArgs args = good;
    change(args);
    return args;
  };
  const struct {
    RmsNormArgs args;
    const char* names;
  } bad[] = {
      {with([](auto& a) { a.num_tokens = -1; }), "num_tokens is -1"},
      {with([](auto& a) { a.hidden = 0; }), "hidden is 0"},
      {with([](auto& a) { a.x_stride = 7; }), "x_stride is 7"},
      {with([](auto& a) { a.y_stride = 7; }), "y_stride is 7"},
      {with([](auto& a) { a.eps = 0; }), "eps is 0"},
      {with([](auto& a) { a.eps = NAN; }), "eps is nan"},
      {with([](auto& a) { a.x = nullptr; }), "x is null"},
      {with([](auto& a) { a.y = nullptr; }), "y is null"},
      {with([](auto& a) { a.weight = nullptr; }), "weight is null"},
  };
  for (const auto& b : bad) {
    for (const Impl<RmsNormArgs>& impl : Runnable()) {
      const absl::Status status = RunOn(impl, b.args);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << b.names;
      EXPECT_NE(std::string(status.message()).find(b.names), std::string::npos) << status;
    }
  }
  EXPECT_TRUE(RunOn(RmsNormImpls()[1], good).ok());
}

TEST(RmsNorm, PicksTheBestThatTheMachineRuns) {
  EXPECT_STREQ(PickImpl(RmsNormImpls(), Isa::kPortable).name, "portable");
  EXPECT_STREQ(PickImpl(RmsNormImpls(), Isa::kAvx2).name, "avx2");
  EXPECT_STREQ(PickImpl(RmsNormImpls(), Isa::kAvx512).name, "avx512");
}

}  // namespace
}  // namespace quire
