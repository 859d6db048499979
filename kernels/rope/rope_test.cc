#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/impl_testing.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope_rows.h"

namespace quire {
namespace {

using test::RunOn;

absl::Status RunSimulated(const RopeArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateRope(args));
  avx512sim::RopeRows(args, 0, args.num_tokens);
  return absl::OkStatus();
}

std::vector<Impl<RopeArgs>> Runnable() { return test::Runnable(RopeImpls(), RunSimulated); }

struct Tables {
  Tables(int64_t max_position, int64_t half) : cos(max_position * half), sin(cos.size()) {
    for (int64_t p = 0; p < max_position; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = p * std::pow(10000.0, -static_cast<double>(i) / half);
        cos[p * half + i] = static_cast<float>(std::cos(angle));
        sin[p * half + i] = static_cast<float>(std::sin(angle));
      }
    }
  }
  std::vector<float> cos, sin;
};

std::vector<float> Gaussian(std::mt19937_64& rng, int64_t n) {
  std::normal_distribution<float> dist;
  std::vector<float> v(n);
  for (float& x : v) x = dist(rng);
  return v;
}

struct Case {
  const char* name;
  int64_t num_tokens;
  int32_t num_heads, head_size;
  int64_t x_stride;
};
constexpr Case kCases[] = {
    {"no_tokens", 0, 2, 64, 128},   {"smallest_head", 3, 1, 2, 2},      {"head_16", 5, 3, 16, 50},
    {"head_64", 7, 9, 64, 960},     {"head_80", 4, 2, 80, 160},         {"head_96", 4, 2, 96, 200},
    {"head_128", 3, 16, 128, 4096}, {"prefill_0_6b", 40, 8, 128, 1024},
};
constexpr int64_t kMaxPosition = 300;

TEST(Rope, MatchesReferenceAndAllVariantsAgreeBitForBit) {
  std::mt19937_64 rng(1);
  for (const Case& c : kCases) {
    const int64_t row = int64_t{c.num_heads} * c.head_size;
    const Tables tables(kMaxPosition, c.head_size / 2);
    std::vector<float> x = Gaussian(rng, c.num_tokens * c.x_stride);
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t i = row; i < c.x_stride; ++i) x[t * c.x_stride + i] = -7;
    }
    const std::vector<float> w = Gaussian(rng, c.head_size);
    std::vector<int32_t> positions(c.num_tokens);
    for (int32_t& p : positions) p = static_cast<int32_t>(rng() % kMaxPosition);
    for (const bool norm : {false, true}) {
      RopeArgs args{nullptr,           c.x_stride,
                    c.num_tokens,      c.num_heads,
                    c.head_size,       positions.data(),
                    tables.cos.data(), tables.sin.data(),
                    kMaxPosition,      norm ? w.data() : nullptr,
                    norm ? 1e-6f : 0};
      const std::vector<Impl<RopeArgs>> impls = Runnable();
      std::vector<float> want = x, first;
      args.x = want.data();
      ASSERT_TRUE(impls[0].reference);
      ASSERT_TRUE(RunOn(impls[0], args).ok());
      for (size_t k = 1; k < impls.size(); ++k) {
        SCOPED_TRACE(testing::Message()
                     << c.name << (norm ? " norm" : "") << " on " << impls[k].name);
        std::vector<float> got = x;
        args.x = got.data();
        ASSERT_TRUE(RunOn(impls[k], args, 3).ok());
        for (int64_t t = 0; t < c.num_tokens; ++t) {
          for (int64_t i = 0; i < c.x_stride; ++i) {
            // Relative to the pair, whose length the rotation keeps: cancellation is no error.
            const int64_t at = t * c.x_stride + i, half = c.head_size / 2;
            const int64_t dim = i % c.head_size;
            const int64_t other = i < row ? (dim < half ? at + half : at - half) : at;
            const float length = std::hypot(want[at], want[other]);
            ASSERT_NEAR(got[at], want[at], 12 * 0x1p-24f * length) << "token " << t << " dim " << i;
          }
        }
        if (first.empty()) first = got;
        ASSERT_EQ(first, got);
      }
    }
  }
}

TEST(Rope, RotatesByPosition) {
  // One pair: (1, 0) turns to (cos p, sin p), the half-split partner being head_size / 2 away.
  const Tables tables(kMaxPosition, 1);
  for (const Impl<RopeArgs>& impl : Runnable()) {
    std::vector<float> x = {1, 0, 0, 1};  // two tokens
    const int32_t positions[] = {2, 0};
    RopeArgs args{x.data(),          2,           2, 1, 2, positions, tables.cos.data(),
                  tables.sin.data(), kMaxPosition};
    ASSERT_TRUE(RunOn(impl, args).ok());
    EXPECT_FLOAT_EQ(x[0], std::cos(2.0f)) << impl.name;
    EXPECT_FLOAT_EQ(x[1], std::sin(2.0f)) << impl.name;
    EXPECT_EQ(x[2], 0.0f);
    EXPECT_EQ(x[3], 1.0f);
  }
}

TEST(Rope, RowDependsOnNothingButItself) {
  std::mt19937_64 rng(3);
  const int64_t tokens = 150;  // enough to fork
  const int32_t heads = 8, size = 128, row = heads * size;
  const Tables tables(kMaxPosition, size / 2);
  const std::vector<float> x = Gaussian(rng, tokens * row), w = Gaussian(rng, size);
  std::vector<int32_t> positions(tokens);
  for (int32_t& p : positions) p = static_cast<int32_t>(rng() % kMaxPosition);
  for (const Impl<RopeArgs>& impl : Runnable()) {
    std::vector<float> all = x;
    RopeArgs args{
        all.data(),        row,          tokens,   heads, size, positions.data(), tables.cos.data(),
        tables.sin.data(), kMaxPosition, w.data(), 1e-6f};
    ASSERT_TRUE(RunOn(impl, args, 4).ok());
    for (int64_t t : {0, 55, 149}) {
      std::vector<float> one(x.begin() + t * row, x.begin() + (t + 1) * row);
      RopeArgs single = args;
      single.x = one.data();
      single.x_stride = row + 3;
      single.num_tokens = 1;
      single.positions = &positions[t];
      ASSERT_TRUE(RunOn(impl, single).ok());
      EXPECT_EQ(std::memcmp(one.data(), all.data() + t * row, row * sizeof(float)), 0) << impl.name;
    }
  }
}

TEST(Rope, FusedNormGivesTheBitsOfTheSeparateOne) {
  std::mt19937_64 rng(4);
  const int32_t size = 80;
  const Tables tables(kMaxPosition, size / 2);
  const std::vector<float> x = Gaussian(rng, 6 * size), w = Gaussian(rng, size);
  const int32_t positions[] = {5, 299};
  std::vector<float> separate = x, fused = x;
  ASSERT_TRUE(
      RunOn(PickImpl(RmsNormImpls(), Isa::kPortable),
            RmsNormArgs{separate.data(), size, w.data(), separate.data(), size, 6, size, 1e-6f})
          .ok());
  RopeArgs args{separate.data(),   3 * size,          2,           3, size, positions,
                tables.cos.data(), tables.sin.data(), kMaxPosition};
  ASSERT_TRUE(RunOn(PickImpl(RopeImpls(), Isa::kPortable), args).ok());
  args.x = fused.data();
  args.norm_weight = w.data();
  args.norm_eps = 1e-6f;
  ASSERT_TRUE(RunOn(PickImpl(RopeImpls(), Isa::kPortable), args).ok());
  EXPECT_EQ(separate, fused);
}

TEST(Rope, RefusesBadArguments) {
  float x[8] = {}, table[32] = {};
  const int32_t positions[] = {0, 3}, low[] = {0, -1}, high[] = {0, 4};
  const RopeArgs good{x, 4, 2, 1, 4, positions, table, table, 4};
  const auto with = [&](auto change) {
    RopeArgs args = good;
    change(args);
    return args;
  };
  const struct {
    RopeArgs args;
    const char* names;
  } bad[] = {
      {with([](auto& a) { a.num_tokens = -2; }), "num_tokens is -2"},
      {with([](auto& a) { a.num_heads = 0; }), "num_heads is 0"},
      {with([](auto& a) { a.head_size = 3; }), "head_size is 3"},
      {with([](auto& a) { a.head_size = 0; }), "head_size is 0"},
      {with([](auto& a) { a.x_stride = 3; }), "x_stride is 3"},
      {with([&](auto& a) { a.positions = low; }), "positions[1] is -1"},
      {with([&](auto& a) { a.positions = high; }), "positions[1] is 4, must be in [0, 4)"},
      {with([&](auto& a) { a.norm_weight = table; }), "norm_eps is 0"},
      {with([](auto& a) { a.x = nullptr; }), "x is null"},
      {with([](auto& a) { a.positions = nullptr; }), "positions is null"},
      {with([](auto& a) { a.cos = nullptr; }), "cos is null"},
      {with([](auto& a) { a.sin = nullptr; }), "sin is null"},
  };
  for (const auto& b : bad) {
    for (const Impl<RopeArgs>& impl : Runnable()) {
      const absl::Status status = RunOn(impl, b.args);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << b.names;
      EXPECT_NE(std::string(status.message()).find(b.names), std::string::npos) << status;
    }
  }
  EXPECT_TRUE(RunOn(RopeImpls()[1], good).ok());
}

}  // namespace
}  // namespace quire
