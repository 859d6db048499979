#include "common/fp.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace quire {
namespace {

// Nearest value of the format by exhaustive search; ties go to the even code.
template <class Format>
uint8_t NearestCode(float x) {
  uint8_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= Format::kMaxCode; ++code) {
    const double distance =
        std::fabs(static_cast<double>(Fp8ToF32<Format>(static_cast<uint8_t>(code))) - std::fabs(x));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = static_cast<uint8_t>(code);
      best_distance = distance;
    }
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

template <class Format>
void CheckFormat() {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) > Format::kMaxCode) continue;
    const float value = Fp8ToF32<Format>(static_cast<uint8_t>(code));
    EXPECT_EQ(F32ToFp8<Format>(value), code) << "code " << code;
  }
  std::mt19937_64 rng(1);
  for (int i = 0; i < 20000; ++i) {
    const int exponent = static_cast<int>(rng() % 40) - 22;
    const float x = std::ldexp(static_cast<float>(rng() % 20001) / 10000.0f - 1.0f, exponent);
    if (std::fabs(x) > Format::kMax) continue;
    EXPECT_EQ(F32ToFp8<Format>(x), NearestCode<Format>(x)) << "x " << x;
  }
  EXPECT_EQ(F32ToFp8<Format>(1e30f), Format::kMaxCode);
  EXPECT_EQ(F32ToFp8<Format>(-1e30f), Format::kMaxCode | 0x80);
}

TEST(Fp, E4m3RoundsToNearestEven) { CheckFormat<E4m3>(); }
TEST(Fp, E5m2RoundsToNearestEven) { CheckFormat<E5m2>(); }

TEST(Fp, F16RoundTripsEveryCode) {
  for (int h = 0; h < 65536; ++h) {
    const float x = F16ToF32(static_cast<uint16_t>(h));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(x))));
    } else {
      EXPECT_EQ(F32ToF16(x), h);
    }
  }
}

#if defined(__FLT16_MANT_DIG__)
TEST(Fp, F16MatchesTheCompiler) {
  std::mt19937_64 rng(2);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(rng()));
    if (std::isnan(x)) continue;
    EXPECT_EQ(F32ToF16(x), std::bit_cast<uint16_t>(static_cast<_Float16>(x))) << x;
  }
}
#endif

TEST(Fp, F16RoundUpIsTheSmallestNotBelow) {
  std::mt19937_64 rng(3);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::ldexp(static_cast<float>(rng() % 10001) / 10000.0f,
                               static_cast<int>(rng() % 40) - 24);
    const uint16_t h = F32ToF16RoundUp(x);
    EXPECT_GE(F16ToF32(h), x);
    if (h > 0) {
      EXPECT_LT(F16ToF32(static_cast<uint16_t>(h - 1)), x);
    }
  }
}

TEST(Fp, Bf16RoundsToNearestEven) {
  EXPECT_EQ(F32ToBf16(1.0f), 0x3f80);
  EXPECT_EQ(F32ToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie to even
  EXPECT_EQ(F32ToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie to even
  EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(NAN))));
}

}  // namespace
}  // namespace quire
