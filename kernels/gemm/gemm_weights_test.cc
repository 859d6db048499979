// Packing, reading back, and quantisation of weights.
#include <algorithm>

#include "kernels/gemm/gemm_test_util.h"

namespace quire::gemm_test {
namespace {

constexpr Isa kIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};

TEST(PackRows, EveryWeightComesBack) {
  std::mt19937_64 rng(7);
  for (const WeightForm form : kForms) {
    for (const int64_t n : {1, 15, 16, 33, 130}) {
      for (const int64_t k : {32, 96, 160, 288}) {
        const Canonical m = MakeCanonical(form, n, k, Fill::kRandom, rng);
        for (const Isa isa : kIsas) {
          SCOPED_TRACE(testing::Message() << WeightFormName(form) << " n " << n << " k " << k
                                          << " for " << IsaName(isa));
          const Packed p = PackAll(m, isa);
          std::vector<float> row(static_cast<size_t>(k));
          for (int64_t r = 0; r < n; ++r) {
            std::fill(row.begin(), row.end(), NAN);
            DequantizeRow(p.matrix, r, row.data());
            for (int64_t i = 0; i < k; ++i) {
              // One product and one sum, each rounded to F32.
              const double want = CanonicalWeight(m, r, i);
              const double slack =
                  form == WeightForm::kInt4Group32Min ? 0x1p-23 : std::fabs(want) * 0x1p-24;
              ASSERT_NEAR(row[static_cast<size_t>(i)], want, slack) << "row " << r << " k " << i;
            }
          }
        }
      }
    }
  }
}

TEST(PackRows, PiecesGiveTheSameBytes) {
  std::mt19937_64 rng(8);
  for (const WeightForm form : kForms) {
    const Canonical m = MakeCanonical(form, 100, 64, Fill::kRandom, rng);
    for (const Isa isa : kIsas) {
      const Packed whole = PackAll(m, isa);
      const int64_t bytes = PackedBytes(form, isa, m.n, m.k);
      Packed pieces;
      pieces.memory = HugeBuffer::Allocate(bytes, "test weights").value();
      pieces.matrix = {form, isa, m.n, m.k, pieces.memory.data()};
      for (const auto& [begin, end] : {std::pair{40, 41}, {0, 7}, {41, 100}, {7, 7}, {7, 40}}) {
        ASSERT_TRUE(PackRows(pieces.matrix, begin, m.Rows(begin, end - begin)).ok());
      }
      EXPECT_EQ(std::memcmp(whole.matrix.data, pieces.matrix.data, static_cast<size_t>(bytes)), 0)
          << WeightFormName(form) << " for " << IsaName(isa);
    }
  }
}

TEST(PackRows, RefusesWhatDoesNotFit) {
  std::mt19937_64 rng(9);
  const Canonical m = MakeCanonical(WeightForm::kBf16, 16, 32, Fill::kRandom, rng);
  const Packed p = PackAll(m, Isa::kAvx2);
  WeightRows rows = m.Rows(0, 16);
  EXPECT_EQ(PackRows(p.matrix, 1, rows).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PackRows(p.matrix, -1, rows).code(), absl::StatusCode::kInvalidArgument);
  rows.k = 48;
  EXPECT_EQ(PackRows(p.matrix, 0, rows).code(), absl::StatusCode::kInvalidArgument);
  rows = m.Rows(0, 16);
  rows.form = WeightForm::kF32;
  EXPECT_EQ(PackRows(p.matrix, 0, rows).code(), absl::StatusCode::kInvalidArgument);
  rows = m.Rows(0, 16);
  rows.values = nullptr;
  EXPECT_EQ(PackRows(p.matrix, 0, rows).code(), absl::StatusCode::kInvalidArgument);

  Canonical fp8 = MakeCanonical(WeightForm::kFp8Block128, 16, 32, Fill::kRandom, rng);
  const Packed packed_fp8 = PackAll(fp8, Isa::kAvx2);
  fp8.values[3 * 32 + 5] = 0xff;
  const absl::Status status = PackRows(packed_fp8.matrix, 0, fp8.Rows(0, 16));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("row 3, k 5"), std::string::npos) << status;
}

TEST(ValidatePackedShape, NamesValueAndLimit) {
  EXPECT_TRUE(ValidatePackedShape(WeightForm::kBf16, 1, 48).ok());
  EXPECT_TRUE(ValidatePackedShape(WeightForm::kInt4Group32, 1, 64).ok());
  const absl::Status status = ValidatePackedShape(WeightForm::kInt4Group32, 8, 48);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("48"), std::string::npos);
  EXPECT_NE(status.message().find("32"), std::string::npos);
  EXPECT_EQ(ValidatePackedShape(WeightForm::kF32, 8, 20).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ValidatePackedShape(WeightForm::kInt8Channel, 8, 65552).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ValidatePackedShape(WeightForm::kF32, 0, 16).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidatePackedShape(WeightForm::kF32, 1, 0).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PackedBytes, AreWhatTheFormsPromise) {
  for (const Isa isa : kIsas) {  // 64 rows of 1024: no padding
    EXPECT_EQ(PackedBytes(WeightForm::kF32, isa, 64, 1024), 64 * 1024 * 4);
    EXPECT_EQ(PackedBytes(WeightForm::kBf16, isa, 64, 1024), 64 * 1024 * 2);
    EXPECT_EQ(PackedBytes(WeightForm::kInt8Channel, isa, 64, 1024), 64 * (1024 + 4));
    EXPECT_EQ(PackedBytes(WeightForm::kInt8Group32, isa, 64, 1024), 64 * (1024 + 64));
    EXPECT_EQ(PackedBytes(WeightForm::kInt4Group32, isa, 64, 1024), 64 * (512 + 64));
    EXPECT_EQ(PackedBytes(WeightForm::kInt4Group32Min, isa, 64, 1024), 64 * (512 + 128));
    EXPECT_EQ(PackedBytes(WeightForm::kFp8Block128, isa, 64, 1024), 64 * (1024 + 32));
    EXPECT_EQ(PackedBytes(WeightForm::kBf16, isa, 1, 16),
              PackedBytes(WeightForm::kBf16, isa, PanelRows(isa), 16));
  }
}

// Rows that are hard on a quantiser.
std::vector<std::vector<float>> HardRows() {
  std::mt19937_64 rng(11);
  std::normal_distribution<float> gauss(0.0f, 1.0f);
  std::vector<std::vector<float>> rows(7, std::vector<float>(64, 0.0f));
  for (float& v : rows[1]) v = gauss(rng);
  for (float& v : rows[2]) v = gauss(rng) * 1e-3f;
  for (float& v : rows[3]) v = -2.5f;                // constant
  for (float& v : rows[4]) v = gauss(rng) * 1e-42f;  // F32 subnormals, zero in F16
  for (float& v : rows[5]) v = gauss(rng) * 1e5f;    // beyond F16, but not the scale
  rows[6][63] = -1.0f;                               // one value only, and one zero group
  return rows;
}

TEST(Quantize, Int8ErrorIsHalfAStep) {
  for (const std::vector<float>& row : HardRows()) {
    int8_t codes[64];
    float scale = NAN;
    QuantizeRowsInt8Channel(row.data(), 1, 64, codes, &scale);
    float amax = 0.0f;
    for (const float v : row) amax = std::max(amax, std::fabs(v));
    EXPECT_EQ(scale, amax / 127.0f);
    for (int i = 0; i < 64; ++i) {
      EXPECT_GE(codes[i], -127);
      // Half a step; with a subnormal scale the clamp costs up to half of amax / 127 = scale more.
      const double step = std::max<double>(scale, 0x1p-149 * 64);
      EXPECT_LE(std::fabs(static_cast<double>(codes[i]) * scale - row[i]), step * 0.5001)
          << "element " << i << " of scale " << scale;
    }
  }
}

TEST(Quantize, GroupsFollowTheirStoredScale) {
  for (const std::vector<float>& row : HardRows()) {
    int8_t codes[64];
    uint16_t scales[2];
    QuantizeRowsInt8Group32(row.data(), 1, 64, codes, scales);
    for (int i = 0; i < 64; ++i) {
      const double scale = F16ToF32(scales[i / 32]);
      // Half a step, and what rounding the scale to F16 (2^-11 relative, or 2^-25) clamps off.
      const double slack = 0.5 * scale + std::max(127 * scale * 0x1p-11, 127 * 0x1p-25);
      EXPECT_LE(std::fabs(codes[i] * scale - row[i]), slack) << "element " << i;
    }
  }
}

TEST(Quantize, Int4SplitsTheRange) {
  for (const std::vector<float>& row : HardRows()) {
    uint8_t values[32];
    uint16_t scales[2], mins[2];
    const auto code = [&](int i) { return (values[i / 2] >> (i % 2 * 4)) & 15; };
    QuantizeRowsInt4Group32(row.data(), 1, 64, values, scales);
    for (int i = 0; i < 64; ++i) {
      const double scale = F16ToF32(scales[i / 32]);
      // Symmetric about 8 with -8 for the extreme: the other sign reaches 7, so up to a whole step.
      const double slack = 1.001 * std::fabs(scale) + 8 * 0x1p-25;
      EXPECT_LE(std::fabs((code(i) - 8) * scale - row[i]), slack) << "element " << i;
    }
    QuantizeRowsInt4Group32Min(row.data(), 1, 64, values, scales, mins);
    if (*std::min_element(row.begin(), row.end()) < -65504.0f) continue;  // min saturates F16
    for (int i = 0; i < 64; ++i) {
      const double scale = F16ToF32(scales[i / 32]);
      const double min = F16ToF32(mins[i / 32]);
      // Half a step; F16 rounding of the scale (times 15) and of the minimum.
      const double slack = 0.5 * scale + 15 * std::max(scale * 0x1p-11, 0x1p-25) +
                           std::max(std::fabs(min) * 0x1p-11, 0x1p-25);
      EXPECT_LE(std::fabs(code(i) * scale + min - row[i]), slack) << "element " << i;
    }
  }
}

// A group as Q4_0 stores it: scale -1 / 8 of the extreme value, which keeps its sign exactly.
TEST(Quantize, Int4IsQ40) {
  float row[32] = {};
  row[4] = 2.0f;    // the extreme: scale -0.25, code 0
  row[5] = -1.75f;  // code 15
  row[6] = 0.26f;   // -1.04 -> code 7
  uint8_t values[16];
  uint16_t scale;
  QuantizeRowsInt4Group32(row, 1, 32, values, &scale);
  EXPECT_EQ(F16ToF32(scale), -0.25f);
  EXPECT_EQ(values[0], 0x88);
  EXPECT_EQ(values[2], 0xf0);
  EXPECT_EQ(values[3], 0x87);
}

// Quantising what was dequantised gives the same codes and scales.
TEST(Quantize, IsIdempotent) {
  std::mt19937_64 rng(12);
  std::normal_distribution<float> gauss(0.0f, 0.05f);
  std::vector<float> x(64 * 64), y(64 * 64);
  for (float& v : x) v = gauss(rng);
  std::vector<int8_t> codes(64 * 64), codes2(64 * 64);
  std::vector<uint8_t> nibbles(64 * 32), nibbles2(64 * 32);
  std::vector<uint16_t> scales(128), scales2(128);

  QuantizeRowsInt8Group32(x.data(), 64, 64, codes.data(), scales.data());
  for (size_t i = 0; i < y.size(); ++i) y[i] = codes[i] * F16ToF32(scales[i / 32]);
  QuantizeRowsInt8Group32(y.data(), 64, 64, codes2.data(), scales2.data());
  EXPECT_EQ(codes, codes2);
  EXPECT_EQ(scales, scales2);

  QuantizeRowsInt4Group32(x.data(), 64, 64, nibbles.data(), scales.data());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] =
        static_cast<float>(((nibbles[i / 2] >> (i % 2 * 4)) & 15) - 8) * F16ToF32(scales[i / 32]);
  }
  QuantizeRowsInt4Group32(y.data(), 64, 64, nibbles2.data(), scales2.data());
  EXPECT_EQ(nibbles, nibbles2);
  EXPECT_EQ(scales, scales2);
}

TEST(Quantize, ZeroRowsHaveScaleZero) {
  const std::vector<float> zeros(64, 0.0f);
  int8_t codes[64];
  uint8_t nibbles[32];
  float scale = NAN;
  uint16_t scales[2], mins[2];
  QuantizeRowsInt8Channel(zeros.data(), 1, 64, codes, &scale);
  EXPECT_EQ(scale, 0.0f);
  EXPECT_TRUE(std::all_of(codes, codes + 64, [](int8_t c) { return c == 0; }));
  QuantizeRowsInt4Group32(zeros.data(), 1, 64, nibbles, scales);
  EXPECT_EQ(F16ToF32(scales[0]), 0.0f);
  EXPECT_TRUE(std::all_of(nibbles, nibbles + 32, [](uint8_t b) { return b == 0x88; }));
  QuantizeRowsInt4Group32Min(zeros.data(), 1, 64, nibbles, scales, mins);
  EXPECT_EQ(scales[1], 0);
  EXPECT_EQ(mins[1], 0);
}

}  // namespace
}  // namespace quire::gemm_test
