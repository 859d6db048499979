// Quantisation of F32 weight rows into the canonical narrow forms.
//
// A scale is stored rounded, so codes are computed from the stored value (the F16 one for groups)
// and clamped: rounding may push the largest element half a step over.
#include <algorithm>
#include <cmath>

#include "common/fp.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/panel_layout.h"

namespace quire {
namespace {

// An F16 of a finite value, saturated at the largest finite one.
uint16_t ToF16(float x) { return F32ToF16(std::clamp(x, -65504.0f, 65504.0f)); }

int RoundTo(float x, int low, int high) {
  return static_cast<int>(
      std::clamp(std::nearbyint(x), static_cast<float>(low), static_cast<float>(high)));
}

float MaxMagnitude(const float* x, int64_t count) {
  float amax = 0.0f;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax;
}

void QuantizeInt8(const float* x, int64_t count, float scale, int8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = scale == 0.0f ? 0 : static_cast<int8_t>(RoundTo(x[i] / scale, -127, 127));
  }
}

// Packs 32 codes, element 2i low, 2i + 1 high.
template <class Code>
void PackNibbles(uint8_t* to, Code code) {
  for (int64_t i = 0; i < kGroup / 2; ++i) {
    to[i] = static_cast<uint8_t>(code(2 * i) | (code(2 * i + 1) << 4));
  }
}

}  // namespace

void QuantizeRowsInt8Channel(const float* x, int64_t num_rows, int64_t k, int8_t* values,
                             float* scales) {
  for (int64_t r = 0; r < num_rows; ++r) {
    scales[r] = MaxMagnitude(x + r * k, k) / 127.0f;
    QuantizeInt8(x + r * k, k, scales[r], values + r * k);
  }
}

void QuantizeRowsInt8Group32(const float* x, int64_t num_rows, int64_t k, int8_t* values,
                             uint16_t* scales) {
  for (int64_t g = 0; g < num_rows * (k / kGroup); ++g) {
    const float* group = x + g * kGroup;
    scales[g] = ToF16(MaxMagnitude(group, kGroup) / 127.0f);
    QuantizeInt8(group, kGroup, F16ToF32(scales[g]), values + g * kGroup);
  }
}

void QuantizeRowsInt4Group32(const float* x, int64_t num_rows, int64_t k, uint8_t* values,
                             uint16_t* scales) {
  for (int64_t g = 0; g < num_rows * (k / kGroup); ++g) {
    const float* group = x + g * kGroup;
    float extreme = 0.0f;  // the signed value of largest magnitude, the first of equals
    for (int64_t i = 0; i < kGroup; ++i) {
      if (std::fabs(group[i]) > std::fabs(extreme)) extreme = group[i];
    }
    scales[g] = ToF16(extreme / -8.0f);
    const float scale = F16ToF32(scales[g]);
    PackNibbles(values + g * kGroup / 2, [&](int64_t i) {
      return scale == 0.0f ? 8 : RoundTo(group[i] / scale, -8, 7) + 8;
    });
  }
}

void QuantizeRowsInt4Group32Min(const float* x, int64_t num_rows, int64_t k, uint8_t* values,
                                uint16_t* scales, uint16_t* mins) {
  for (int64_t g = 0; g < num_rows * (k / kGroup); ++g) {
    const float* group = x + g * kGroup;
    const auto [low, high] = std::minmax_element(group, group + kGroup);
    scales[g] = ToF16((*high - *low) / 15.0f);
    mins[g] = ToF16(*low);
    const float scale = F16ToF32(scales[g]);
    const float min = F16ToF32(mins[g]);
    PackNibbles(values + g * kGroup / 2, [&](int64_t i) {
      return scale == 0.0f ? 0 : RoundTo((group[i] - min) / scale, 0, 15);
    });
  }
}

}  // namespace quire
