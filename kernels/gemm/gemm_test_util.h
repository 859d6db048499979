// What the GEMM tests share: random matrices in every form, packed for every family.
#ifndef QUIRE_KERNELS_GEMM_GEMM_TEST_UTIL_H_
#define QUIRE_KERNELS_GEMM_GEMM_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/fp.h"
#include "common/memory.h"
#include "kernels/gemm/gemm.h"

namespace quire::gemm_test {

constexpr WeightForm kForms[] = {
    WeightForm::kF32,         WeightForm::kBf16,        WeightForm::kInt8Channel,
    WeightForm::kInt8Group32, WeightForm::kInt4Group32, WeightForm::kInt4Group32Min,
    WeightForm::kFp8Block128,
};

inline bool IsFloat(WeightForm form) {
  return form == WeightForm::kF32 || form == WeightForm::kBf16 || form == WeightForm::kFp8Block128;
}
inline bool IsInt4(WeightForm form) {
  return form == WeightForm::kInt4Group32 || form == WeightForm::kInt4Group32Min;
}
inline bool IsGrouped(WeightForm form) { return IsInt4(form) || form == WeightForm::kInt8Group32; }

// A matrix in canonical form. values, scales and mins hold raw bytes.
struct Canonical {
  WeightForm form;
  int64_t n, k;
  std::vector<uint8_t> values, scales, mins;

  int64_t ValueBytes() const {
    return form == WeightForm::kF32    ? 4 * k
           : form == WeightForm::kBf16 ? 2 * k
           : IsInt4(form)              ? k / 2
                                       : k;
  }
  int64_t ScaleBytes() const {
    return form == WeightForm::kInt8Channel ? 4 : IsGrouped(form) ? k / 32 * 2 : 0;
  }
  // Rows [begin, begin + count); for FP8 inside one block of 128.
  WeightRows Rows(int64_t begin, int64_t count) const {
    WeightRows rows{form, count, k, values.data() + begin * ValueBytes()};
    if (form == WeightForm::kFp8Block128) {
      rows.scales = scales.data() + begin / 128 * ((k + 127) / 128) * 4;
    } else if (!scales.empty()) {
      rows.scales = scales.data() + begin * ScaleBytes();
    }
    if (!mins.empty()) rows.mins = mins.data() + begin * ScaleBytes();
    return rows;
  }
};

// What a random matrix holds.
enum class Fill { kRandom, kExtreme, kZero, kLarge, kTiny };

inline Canonical MakeCanonical(WeightForm form, int64_t n, int64_t k, Fill fill,
                               std::mt19937_64& rng) {
  Canonical m{form, n, k, {}, {}, {}};
  const float magnitude = fill == Fill::kLarge ? 1e15f : fill == Fill::kTiny ? 1e-20f : 1.0f;
  std::normal_distribution<float> gauss(0.0f, 1.0f);
  const auto value = [&] { return fill == Fill::kZero ? 0.0f : gauss(rng) * magnitude; };
  const auto put = [](std::vector<uint8_t>& to, auto v) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&v);
    to.insert(to.end(), bytes, bytes + sizeof(v));
  };
  const auto scale = [&] {
    return fill == Fill::kZero ? 0.0f : (0.5f + std::fabs(gauss(rng))) * 0.01f;
  };
  for (int64_t i = 0; i < n * k; ++i) {
    const uint64_t bits = rng();
    switch (form) {
      case WeightForm::kF32:
        put(m.values, value());
        break;
      case WeightForm::kBf16:
        put(m.values, F32ToBf16(value()));
        break;
      case WeightForm::kInt8Channel:
      case WeightForm::kInt8Group32:
        put(m.values,
            static_cast<int8_t>(fill == Fill::kExtreme ? 127 : static_cast<int>(bits % 255) - 127));
        break;
      case WeightForm::kFp8Block128: {  // every code but NaN, subnormals and both zeros too
        auto code = static_cast<uint8_t>(bits % 256);
        if ((code & 0x7f) == 0x7f) code = 0x03;
        put(m.values, fill == Fill::kExtreme ? uint8_t{0x7e} : code);
        break;
      }
      default:
        if (i % 2 == 0) {
          put(m.values, static_cast<uint8_t>(fill == Fill::kExtreme ? 0xff : bits % 256));
        }
    }
  }
  if (form == WeightForm::kInt8Channel) {
    for (int64_t r = 0; r < n; ++r) put(m.scales, scale() * magnitude);
  } else if (form == WeightForm::kFp8Block128) {
    for (int64_t i = 0; i < (n + 127) / 128 * ((k + 127) / 128); ++i) {
      put(m.scales, scale() * magnitude);
    }
  } else if (IsGrouped(form)) {
    for (int64_t i = 0; i < n * k / 32; ++i) {
      const bool negative = form == WeightForm::kInt4Group32 && i % 3 == 0;  // Q4_0 has such
      put(m.scales, F32ToF16(negative ? -scale() : scale()));
      if (form == WeightForm::kInt4Group32Min) put(m.mins, F32ToF16(-8.0f * scale()));
    }
  }
  return m;
}

// Packed memory, aligned and zeroed as PackedMatrix asks.
struct Packed {
  HugeBuffer memory;
  PackedMatrix matrix;
};

inline Packed PackAll(const Canonical& m, Isa isa) {
  Packed p;
  const int64_t bytes = PackedBytes(m.form, isa, m.n, m.k);
  p.memory = HugeBuffer::Allocate(bytes, "test weights").value();
  p.matrix = {m.form, isa, m.n, m.k, p.memory.data()};
  const int64_t step = m.form == WeightForm::kFp8Block128 ? 128 : m.n;
  for (int64_t begin = 0; begin < m.n; begin += step) {
    const int64_t count = std::min(step, m.n - begin);
    EXPECT_TRUE(PackRows(p.matrix, begin, m.Rows(begin, count)).ok());
  }
  return p;
}

// The definition of a canonical weight, apart from any packing.
inline double CanonicalWeight(const Canonical& m, int64_t row, int64_t k) {
  const auto at = [](const std::vector<uint8_t>& from, int64_t index, auto kind) {
    decltype(kind) v;
    std::memcpy(&v, from.data() + index * static_cast<int64_t>(sizeof(v)), sizeof(v));
    return v;
  };
  const int64_t i = row * m.k + k;
  switch (m.form) {
    case WeightForm::kF32:
      return at(m.values, i, float{});
    case WeightForm::kBf16:
      return Bf16ToF32(at(m.values, i, uint16_t{}));
    case WeightForm::kInt8Channel:
      return static_cast<double>(at(m.values, i, int8_t{})) * at(m.scales, row, float{});
    case WeightForm::kInt8Group32:
      return static_cast<double>(at(m.values, i, int8_t{})) *
             F16ToF32(at(m.scales, i / 32, uint16_t{}));
    case WeightForm::kFp8Block128:
      return static_cast<double>(Fp8ToF32<E4m3>(m.values[static_cast<size_t>(i)])) *
             at(m.scales, row / 128 * ((m.k + 127) / 128) + k / 128, float{});
    default: {
      const int code = (m.values[static_cast<size_t>(i / 2)] >> (k % 2 * 4)) & 15;
      const double scale = F16ToF32(at(m.scales, i / 32, uint16_t{}));
      if (m.form == WeightForm::kInt4Group32) return (code - 8) * scale;
      return code * scale + F16ToF32(at(m.mins, i / 32, uint16_t{}));
    }
  }
}

}  // namespace quire::gemm_test

#endif  // QUIRE_KERNELS_GEMM_GEMM_TEST_UTIL_H_
