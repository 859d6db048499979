// Scalar conversions between F32 and BF16, F16, FP8 (e4m3, e5m2): the definition that every fast
// path is tested against. All are round-to-nearest-even and right for subnormals.
//
// FP8 is the OCP 8-bit floating point format: e4m3 has no infinity and its largest value is 448;
// e5m2 has infinity and its largest finite value is 57344. Encoding saturates.
#ifndef QUIRE_COMMON_FP_H_
#define QUIRE_COMMON_FP_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace quire {

inline float Bf16ToF32(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// NaN stays NaN (quiet).
inline uint16_t F32ToBf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float F16ToF32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in F32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline uint16_t F32ToF16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return sign | 0x7e00u;  // NaN
  if (a >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or more: infinity
  if (a < 0x38800000u) {                       // below 2^-14: subnormal or zero
    // Adding 2^-1 puts the F16 subnormal grid (2^-24) at the last bit of F32, which rounds it.
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

// Smallest F16 that is >= x. Requires 0 <= x <= 65504.
inline uint16_t F32ToF16RoundUp(float x) {
  uint16_t h = F32ToF16(x);
  if (F16ToF32(h) < x) ++h;
  return h;
}

// The two FP8 formats, by their parameters.
struct E4m3 {
  static constexpr float kMax = 448.0f;
  static constexpr uint8_t kMaxCode = 0x7e;
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
};
struct E5m2 {
  static constexpr float kMax = 57344.0f;
  static constexpr uint8_t kMaxCode = 0x7b;
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
};

// NaN codes (and the infinities of e5m2) decode to NaN (and infinity).
template <class Format>
inline float Fp8ToF32(uint8_t code) {
  constexpr int m = Format::kMantissaBits;
  const int exponent = (code & 0x7f) >> m;
  const int mantissa = code & ((1 << m) - 1);
  float value;
  if ((code & 0x7f) > Format::kMaxCode) {
    value = (m == 2 && mantissa == 0) ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), 1 - Format::kBias - m);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + (1 << m)), exponent - Format::kBias - m);
  }
  return (code & 0x80) != 0 ? -value : value;
}

// Saturates at +-kMax. Requires x not NaN: NaN is refused upstream (it encodes as a NaN code here).
template <class Format>
inline uint8_t F32ToFp8(float x) {
  constexpr int m = Format::kMantissaBits;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float a = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7f;
  if (a == 0.0f) return sign;
  if (a >= Format::kMax) return sign | Format::kMaxCode;
  // The grid of the binade that a lies in; below the smallest normal it is the subnormal grid.
  int exponent = 0;
  (void)std::frexp(a, &exponent);  // a in [2^(exponent-1), 2^exponent)
  const int grid = (exponent - 1 < 1 - Format::kBias ? 1 - Format::kBias : exponent - 1) - m;
  const float steps = std::nearbyint(std::ldexp(a, -grid));  // default mode: nearest even
  // Codes are consecutive through the binades, so code = (binade index << m) + steps works even
  // where rounding reaches the next binade.
  const int code = ((grid + m + Format::kBias - 1) << m) + static_cast<int>(steps);
  return sign | static_cast<uint8_t>(code > Format::kMaxCode ? Format::kMaxCode : code);
}

}  // namespace quire

#endif  // QUIRE_COMMON_FP_H_
