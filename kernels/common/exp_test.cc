#include "kernels/common/exp.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/common/isa.h"

namespace quire {

using ExpProbeFn = bool(int, bool, const float*, float*, int64_t);
namespace portable {
ExpProbeFn ExpProbe;
}
namespace avx2 {
ExpProbeFn ExpProbe;
}
namespace avx512 {
ExpProbeFn ExpProbe;
}
namespace avx512sim {
ExpProbeFn ExpProbe;
}

namespace {

struct Form {
  const char* name;
  ExpProbeFn* probe;
  int width;
  Isa isa;
};
const Form kForms[] = {
    {"portable", portable::ExpProbe, 1, Isa::kPortable},
    {"avx2 scalar", avx2::ExpProbe, 1, Isa::kAvx2},
    {"avx2", avx2::ExpProbe, 8, Isa::kAvx2},
    {"avx512", avx512::ExpProbe, 16, Isa::kAvx512},
    {"avx512sim 8", avx512sim::ExpProbe, 8, Isa::kAvx2},
    {"avx512sim", avx512sim::ExpProbe, 16, Isa::kAvx2},
};

// Every 6007th float (a prime: all mantissa patterns) of magnitude below `limit`, both signs.
std::vector<float> Arguments(float limit, bool positive) {
  std::vector<float> x;
  for (uint32_t u = 0; u < std::bit_cast<uint32_t>(limit); u += 6007) {
    x.push_back(-std::bit_cast<float>(u));
    if (positive) x.push_back(std::bit_cast<float>(u));
  }
  while (x.size() % 16 != 0) x.push_back(0.0f);
  return x;
}

// Error in units of the last place of the exact result (of the smallest subnormal below that).
double UlpError(float got, double want) {
  int exponent = 0;
  (void)std::frexp(want, &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Exp, IsRightWithinAnUlpAndTheSameInEveryForm) {
  const std::vector<float> x = Arguments(88.7f, true);
  std::vector<float> first;
  for (const Form& form : kForms) {
    if (form.isa > DetectIsa()) continue;
    SCOPED_TRACE(form.name);
    std::vector<float> y(x.size());
    ASSERT_TRUE(form.probe(form.width, false, x.data(), y.data(), x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, UlpError(y[i], std::exp(double{x[i]})));
    EXPECT_LT(worst, 1.1);
    if (first.empty()) first = y;
    EXPECT_EQ(y, first);
  }
}

TEST(Exp, NonPositiveIsRightWithinAnUlpAndTheSameInEveryForm) {
  const std::vector<float> x = Arguments(87.0f, false);
  std::vector<float> first;
  for (const Form& form : kForms) {
    if (form.isa > DetectIsa()) continue;
    SCOPED_TRACE(form.name);
    std::vector<float> y(x.size());
    ASSERT_TRUE(form.probe(form.width, true, x.data(), y.data(), x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, UlpError(y[i], std::exp(double{x[i]})));
    EXPECT_LT(worst, 1.1);
    if (first.empty()) first = y;
    EXPECT_EQ(y, first);
  }
}

TEST(Exp, EdgesOfTheRange) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan_with_payload = std::bit_cast<float>(0x7fc001ffu);
  const float x[16] = {0.0f,    -0.0f,  kInf,   -kInf,   1e30f, -1e30f,           88.73f,
                       -103.0f, -90.0f, 1e-40f, -1e-40f, NAN,   nan_with_payload, -NAN,
                       88.72f,  -104.0f};
  for (const Form& form : kForms) {
    if (form.isa > DetectIsa()) continue;
    SCOPED_TRACE(form.name);
    float y[16], z[16];
    ASSERT_TRUE(form.probe(form.width, false, x, y, 16));
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], kInf);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_EQ(y[4], kInf);
    EXPECT_EQ(y[5], 0.0f);
    EXPECT_EQ(y[6], kInf);
    EXPECT_LT(UlpError(y[7], std::exp(-103.0)), 1.1);
    EXPECT_LT(UlpError(y[8], std::exp(-90.0)), 1.1);
    EXPECT_EQ(y[9], 1.0f);
    EXPECT_EQ(y[10], 1.0f);
    for (int i : {11, 12, 13}) EXPECT_TRUE(std::isnan(y[i])) << i;
    EXPECT_LT(UlpError(y[14], std::exp(double{88.72f})), 1.1);
    EXPECT_EQ(y[15], 0.0f);

    ASSERT_TRUE(form.probe(form.width, true, x, z, 16));
    EXPECT_EQ(z[0], 1.0f);
    EXPECT_EQ(z[1], 1.0f);
    for (int i : {3, 5, 7, 8, 15}) EXPECT_LT(z[i], 1.7e-38f) << i;
    for (int i : {11, 12, 13}) EXPECT_TRUE(std::isnan(z[i])) << i;
  }
}

}  // namespace
}  // namespace quire
