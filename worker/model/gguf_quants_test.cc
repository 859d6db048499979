// Dequantisation against the `gguf` package, and blocks that become packed forms without floats.
#include "worker/model/gguf_quants.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/fp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_files.h"
#include "worker/model/row_converter.h"
#include "worker/model/weight_forms.h"

namespace quire {
namespace {

constexpr TensorTypeInfo kTypes[] = {
    {TensorType::kF32, "F32", 1, 4},      {TensorType::kF16, "F16", 1, 2},
    {TensorType::kBf16, "BF16", 1, 2},    {TensorType::kQ8_0, "Q8_0", 32, 34},
    {TensorType::kQ4_0, "Q4_0", 32, 18},  {TensorType::kQ4_1, "Q4_1", 32, 20},
    {TensorType::kQ5_0, "Q5_0", 32, 22},  {TensorType::kQ5_1, "Q5_1", 32, 24},
    {TensorType::kQ4K, "Q4_K", 256, 144}, {TensorType::kQ5K, "Q5_K", 256, 176},
    {TensorType::kQ6K, "Q6_K", 256, 210},
};

struct Golden {
  std::string bytes;
  std::vector<float> values;
};

Golden ReadGolden(const std::string& type) {
  static const nlohmann::json all =
      nlohmann::json::parse(test::ReadSourceFile("tests/golden/gguf_quants/gguf_quants.json"));
  Golden golden;
  golden.bytes = absl::HexStringToBytes(all[type]["bytes"].get<std::string>());
  const std::string values = absl::HexStringToBytes(all[type]["f32"].get<std::string>());
  golden.values.resize(values.size() / 4);
  std::memcpy(golden.values.data(), values.data(), values.size());
  return golden;
}

// The blocks as a matrix of one row in a file.
struct OneRow {
  test::TempDir directory;
  TensorFiles files;
  TensorInfo tensor;
  RowSource source;

  OneRow(const TensorTypeInfo& type, const std::string& bytes, int64_t count) {
    const std::string path = directory.path() + "/row";
    std::ofstream(path, std::ios::binary) << bytes;
    files.files.push_back(*MappedFile::Open(path));
    tensor.name = "row";
    tensor.type = type;
    tensor.shape = {1, count};
    tensor.end = static_cast<int64_t>(bytes.size());
    source = RowSource{&files, &tensor, nullptr, 0};
  }
};

TEST(GgufQuants, MatchesTheReferencePackage) {
  for (const TensorTypeInfo& type : kTypes) {
    SCOPED_TRACE(type.name);
    const Golden golden = ReadGolden(type.name);
    const auto count = static_cast<int64_t>(golden.values.size());
    ASSERT_GE(count, 64);
    ASSERT_EQ(static_cast<int64_t>(golden.bytes.size()),
              count / type.block_elements * type.block_bytes);
    // One byte further in: no alignment is needed.
    const std::string shifted = "x" + golden.bytes;
    std::vector<float> got(count, NAN);
    DequantizeToF32(type.type, reinterpret_cast<const std::byte*>(shifted.data()) + 1, count,
                    got.data());
    for (int64_t i = 0; i < count; ++i) {
      const float want = golden.values[i];
      const float ulp = std::nextafter(std::fabs(want), INFINITY) - std::fabs(want);
      ASSERT_LE(std::fabs(got[i] - want), ulp) << "element " << i << ": " << got[i] << ", " << want;
    }
  }
}

// Packs the golden blocks in `form` and reads them back.
std::vector<float> ThroughPacking(const TensorTypeInfo& type, const Golden& golden,
                                  WeightForm form) {
  const auto count = static_cast<int64_t>(golden.values.size());
  const OneRow row(type, golden.bytes, count);
  RowConverter converter;
  WeightRows rows;
  const absl::Status converted = converter.Convert(row.source, 0, 1, form, &rows);
  EXPECT_TRUE(converted.ok()) << converted;
  const auto memory =
      HugeBuffer::Allocate(PackedBytes(form, Isa::kPortable, 1, count), "test memory");
  EXPECT_TRUE(memory.ok()) << memory.status();
  const PackedMatrix matrix{form, Isa::kPortable, 1, count, memory->data()};
  const absl::Status packed = PackRows(matrix, 0, rows);
  EXPECT_TRUE(packed.ok()) << packed;
  std::vector<float> values(count);
  DequantizeRow(matrix, 0, values.data());
  return values;
}

// The forms that hold a type without floats, and the largest error in steps of the type's own grid.
TEST(GgufQuants, BlocksBecomePackedFormsWithoutFloats) {
  const struct {
    const char* type;
    WeightForm form;
    bool exact;
  } cases[] = {
      {"Q8_0", WeightForm::kInt8Group32, true},     {"Q5_0", WeightForm::kInt8Group32, true},
      {"Q4_0", WeightForm::kInt8Group32, true},     {"Q4_0", WeightForm::kInt4Group32, true},
      {"Q4_0", WeightForm::kInt4Group32Min, true},  {"Q4_1", WeightForm::kInt4Group32Min, true},
      {"Q4_K", WeightForm::kInt4Group32Min, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << c.type << " as " << WeightFormName(c.form));
    const TensorTypeInfo* type = nullptr;
    for (const TensorTypeInfo& t : kTypes) {
      if (std::string(t.name) == c.type) type = &t;
    }
    ASSERT_NE(type, nullptr);
    EXPECT_TRUE(ConvertsDirectly(type->type, c.form));
    const Golden golden = ReadGolden(c.type);
    const std::vector<float> got = ThroughPacking(*type, golden, c.form);
    for (size_t i = 0; i < got.size(); ++i) {
      const float want = golden.values[i];
      if (c.exact) {
        // An FMA may keep what the reference rounds: half a step of the larger term.
        ASSERT_NEAR(got[i], want, std::fabs(want) * 0x1p-20f + 0x1p-20f) << "element " << i;
        continue;
      }
      // Scale and min rounded to F16: relative 2^-11 each, of at most 15 steps and one min; below
      // F16's normal range half a subnormal step each.
      float group_max = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
        group_max = std::max(group_max, std::fabs(golden.values[j]));
      }
      ASSERT_NEAR(got[i], want, group_max * 0x1p-8f + 16 * 0x1p-25f) << "element " << i;
    }
  }
}

// What has no exact form goes through floats into groups of 32: at most half a step of 1/127.
TEST(GgufQuants, OtherTypesBecomeInt8Groups) {
  for (const TensorTypeInfo& type : kTypes) {
    const auto form = FormForTensor(type, "auto", false);
    ASSERT_TRUE(form.ok());
    if (*form != WeightForm::kInt8Group32 || ConvertsDirectly(type.type, *form)) continue;
    SCOPED_TRACE(type.name);
    const Golden golden = ReadGolden(type.name);
    const std::vector<float> got = ThroughPacking(type, golden, *form);
    for (size_t i = 0; i < got.size(); ++i) {
      float group_max = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
        group_max = std::max(group_max, std::fabs(golden.values[j]));
      }
      // Half a step; the scale's F16 rounding may cost up to 127 * 2^-12 steps more, and below
      // 2^-14 a whole subnormal step a code.
      ASSERT_NEAR(got[i], golden.values[i], group_max / 127 * 0.6f + 128 * 0x1p-25f)
          << "element " << i;
    }
  }
}

TEST(GgufQuants, NonFiniteValuesAreNotQuantised) {
  std::string bytes(64 * 4, '\0');
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + 5 * 4, &infinity, 4);
  const OneRow row(kTypes[0], bytes, 64);
  RowConverter converter;
  WeightRows rows;
  for (WeightForm form : {WeightForm::kInt8Channel, WeightForm::kInt8Group32,
                          WeightForm::kInt4Group32, WeightForm::kInt4Group32Min}) {
    const absl::Status status = converter.Convert(row.source, 0, 1, form, &rows);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find("row 0 holds inf at 5"), std::string::npos)
        << status;
  }
}

// The choice for --weights-dtype int4 from floats: the affine form errs less than the symmetric
// one.
TEST(GgufQuants, AffineGroupsErrLessThanSymmetricOnes) {
  std::vector<float> x(64 * 256);
  uint64_t state = 1;
  for (float& value : x) {  // a sum of four: close to a normal distribution, as weights are
    value = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      value += static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    }
  }
  const int64_t groups = 64 * 8;
  std::vector<uint8_t> codes(x.size() / 2);
  std::vector<uint16_t> scales(groups), mins(groups);
  const auto error = [&](bool affine) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const int code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
      const float scale = F16ToF32(scales[i / 32]);
      const float value = affine ? static_cast<float>(code) * scale + F16ToF32(mins[i / 32])
                                 : static_cast<float>(code - 8) * scale;
      sum += (value - x[i]) * (value - x[i]);
    }
    return sum;
  };
  QuantizeRowsInt4Group32(x.data(), 64, 256, codes.data(), scales.data());
  const double symmetric = error(false);
  QuantizeRowsInt4Group32Min(x.data(), 64, 256, codes.data(), scales.data(), mins.data());
  EXPECT_LT(error(true), 0.95 * symmetric);
}

}  // namespace
}  // namespace quire
