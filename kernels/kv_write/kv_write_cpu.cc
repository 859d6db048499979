// KV write for one instruction set. Converting a vector is SIMD (AVX2 forms serve AVX-512 too: the
// work is a division an element and scattered stores, not arithmetic); one work item is one KV head
// of 16 tokens, which usually share a page.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "kernels/common/simd.h"
#include "kernels/kv_write/kv_write.h"

namespace quire::QUIRE_ISA {

absl::Status KvWrite(const KvWriteArgs& args, ExecContext& context);

namespace {

constexpr int64_t kTokensPerItem = 16;
constexpr int64_t kMinElementsToFork = 16384;  // about 10 us of one core
constexpr int32_t kMaxHeadSize = 512;
constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kBf16OverflowBits = 0x7f7f8000u;  // rounds to infinity from here on

// What the conversion of |x| / scale to a code needs, by format.
struct E4m3Code {
  static constexpr float kMax = 448.0f;
  static constexpr int kShift = 20;                    // F32 mantissa bits that are dropped
  static constexpr uint32_t kRebias = (127 - 7) << 3;  // exponent bias, at the code's place
  static constexpr float kMinNormal = 0x1p-6f;
  static constexpr float kSubnormalMagic = 0x1p14f;  // its last place is the subnormal grid
};
struct E5m2Code {
  static constexpr float kMax = 57344.0f;
  static constexpr int kShift = 21;
  static constexpr uint32_t kRebias = (127 - 15) << 2;
  static constexpr float kMinNormal = 0x1p-14f;
  static constexpr float kSubnormalMagic = 0x1p7f;
};

inline uint32_t Bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof(u));
  return u;
}

// amax / max, at least 2^-24, rounded up to FP16 (as F32 value and as bits). Requires amax > 0.
inline uint16_t ScaleOf(float amax, float max, float* value) {
  float exact = amax / max;
  if (exact < 0x1p-24f) exact = 0x1p-24f;
  if (exact > 65504.0f) exact = 65504.0f;
  // FP16 has 10 mantissa bits; below 2^-14 its grid is 2^-24.
  if (exact < 0x1p-14f) {
    const float steps = exact * 0x1p24f;  // exact, below 1024
    uint32_t n = static_cast<uint32_t>(steps);
    if (static_cast<float>(n) < steps) ++n;
    *value = static_cast<float>(n) * 0x1p-24f;
    return static_cast<uint16_t>(n);
  }
  const uint32_t up = (Bits(exact) + 0x1fffu) & ~0x1fffu;
  std::memcpy(value, &up, sizeof(up));
  return static_cast<uint16_t>((up >> 13) - (112u << 10));
}

#if QUIRE_SIMD_AVX2 || QUIRE_SIMD_AVX512

// Largest magnitude of x[0, count) as bits: monotone in the magnitude, infinity and NaN on top.
inline uint32_t MaxMagnitudeBits(const float* x, int32_t count) {
  __m256i m = _mm256_setzero_si256();
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  for (int32_t i = 0; i < count; i += 8) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    m = _mm256_max_epi32(m, _mm256_and_si256(v, mask));
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), m);
  uint32_t result = 0;
  for (uint32_t lane : lanes) result = lane > result ? lane : result;
  return result;
}

template <class Format>
inline void Encode(const float* x, int32_t count, float scale, uint8_t* codes) {
  const __m256 divisor = _mm256_set1_ps(scale);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i one = _mm256_set1_epi32(1);
  const __m256 magic = _mm256_set1_ps(Format::kSubnormalMagic);
  for (int32_t i = 0; i < count; i += 8) {
    const __m256 y = _mm256_div_ps(_mm256_loadu_ps(x + i), divisor);
    const __m256i bits = _mm256_castps_si256(y);
    const __m256 a = _mm256_min_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, magnitude)),
                                   _mm256_set1_ps(Format::kMax));
    const __m256i u = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, Format::kShift), one);
    __m256i normal = _mm256_add_epi32(_mm256_add_epi32(u, odd),
                                      _mm256_set1_epi32((1 << (Format::kShift - 1)) - 1));
    normal = _mm256_sub_epi32(_mm256_srli_epi32(normal, Format::kShift),
                              _mm256_set1_epi32(Format::kRebias));
    const __m256i subnormal =
        _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(a, magic)), _mm256_castps_si256(magic));
    const __m256 is_subnormal = _mm256_cmp_ps(a, _mm256_set1_ps(Format::kMinNormal), _CMP_LT_OQ);
    __m256i code = _mm256_blendv_epi8(normal, subnormal, _mm256_castps_si256(is_subnormal));
    code = _mm256_or_si256(code, _mm256_slli_epi32(_mm256_srli_epi32(bits, 31), 7));
    // 8 codes of 32 bits to 8 bytes.
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + i), _mm_packus_epi16(words, words));
  }
}

inline void RoundToBf16(const float* x, int32_t count, uint16_t* y) {
  for (int32_t i = 0; i < count; i += 8) {
    const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff)), 16);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(y + i),
        _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }
}

#else

inline uint32_t MaxMagnitudeBits(const float* x, int32_t count) {
  uint32_t result = 0;
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t u = Bits(x[i]) & 0x7fffffffu;
    result = u > result ? u : result;
  }
  return result;
}

template <class Format>
inline void Encode(const float* x, int32_t count, float scale, uint8_t* codes) {
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t bits = Bits(x[i] / scale);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t u = magnitude < Bits(Format::kMax) ? magnitude : Bits(Format::kMax);
    uint32_t code;
    if (u < Bits(Format::kMinNormal)) {
      float a;
      std::memcpy(&a, &u, sizeof(a));
      code = Bits(a + Format::kSubnormalMagic) - Bits(Format::kSubnormalMagic);
    } else {
      const uint32_t odd = (u >> Format::kShift) & 1u;
      code = ((u + odd + (1u << (Format::kShift - 1)) - 1u) >> Format::kShift) - Format::kRebias;
    }
    codes[i] = static_cast<uint8_t>(code | (bits >> 31) << 7);
  }
}

inline void RoundToBf16(const float* x, int32_t count, uint16_t* y) {
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t u = Bits(x[i]);
    y[i] = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}

#endif

template <class Format>
inline uint16_t Quantize(const float* x, int32_t count, uint32_t max_bits, uint8_t* codes) {
  if (max_bits == 0) {
    std::memset(codes, 0, count);
    return 0;
  }
  float amax;
  std::memcpy(&amax, &max_bits, sizeof(amax));
  float scale;
  const uint16_t scale_bits = ScaleOf(amax, Format::kMax, &scale);
  Encode<Format>(x, count, scale, codes);
  return scale_bits;
}

// Elements of T, one token's: to words of a K tile (whole words) or to its place in the words of a
// V tile. `tile` is the tile's first byte.
template <class T>
inline void StoreK(const T* x, int32_t head_size, int32_t block_size, int32_t token,
                   std::byte* tile) {
  constexpr int32_t kGroup = 4 / sizeof(T);
  std::byte* out = tile + 4 * token;
  for (int32_t i = 0; i < head_size / kGroup; ++i) {
    std::memcpy(out + int64_t{i} * block_size * 4, x + i * kGroup, 4);
  }
}

template <class T>
inline void StoreV(const T* x, int32_t head_size, int32_t block_size, int32_t token,
                   std::byte* tile) {
  constexpr int32_t kGroup = 4 / sizeof(T);
  std::byte* out = tile + int64_t{token / kGroup} * 64 + token % kGroup * sizeof(T);
  for (int32_t c = 0; c < head_size / 16; ++c) {
    std::byte* words = out + int64_t{c} * (block_size / kGroup) * 64;
    for (int32_t l = 0; l < 16; ++l) std::memcpy(words + 4 * l, x + c * 16 + l, sizeof(T));
  }
}

// One token of one KV head. False where K or V cannot be stored.
bool WriteToken(const KvLayout& layout, const float* k, const float* v, std::byte* stripe,
                int32_t token) {
  const int32_t count = layout.head_size;
  const uint32_t k_max = MaxMagnitudeBits(k, count);
  const uint32_t v_max = MaxMagnitudeBits(v, count);
  const uint32_t limit = layout.dtype == KvDtype::kBf16 ? kBf16OverflowBits : kInfinityBits;
  if (k_max >= limit || v_max >= limit) return false;
  std::byte* v_tile = stripe + layout.v_offset_bytes();
  switch (layout.dtype) {
    case KvDtype::kF32:
      StoreK(k, count, layout.block_size, token, stripe);
      StoreV(v, count, layout.block_size, token, v_tile);
      break;
    case KvDtype::kBf16: {
      uint16_t rounded[kMaxHeadSize];
      RoundToBf16(k, count, rounded);
      StoreK(rounded, count, layout.block_size, token, stripe);
      RoundToBf16(v, count, rounded);
      StoreV(rounded, count, layout.block_size, token, v_tile);
      break;
    }
    case KvDtype::kFp8E4m3:
    case KvDtype::kFp8E5m2: {
      uint8_t codes[kMaxHeadSize];
      const bool e4m3 = layout.dtype == KvDtype::kFp8E4m3;
      const uint16_t k_scale = e4m3 ? Quantize<E4m3Code>(k, count, k_max, codes)
                                    : Quantize<E5m2Code>(k, count, k_max, codes);
      StoreK(codes, count, layout.block_size, token, stripe);
      const uint16_t v_scale = e4m3 ? Quantize<E4m3Code>(v, count, v_max, codes)
                                    : Quantize<E5m2Code>(v, count, v_max, codes);
      StoreV(codes, count, layout.block_size, token, v_tile);
      std::memcpy(stripe + layout.k_scale_offset_bytes() + 2 * token, &k_scale, 2);
      std::memcpy(stripe + layout.v_scale_offset_bytes() + 2 * token, &v_scale, 2);
      break;
    }
  }
  return true;
}

}  // namespace

absl::Status KvWrite(const KvWriteArgs& args, ExecContext& context) {
  RETURN_IF_ERROR(ValidateKvWrite(args));
  const KvLayout& layout = args.layout;
  const int64_t num_runs = (args.num_tokens + kTokensPerItem - 1) / kTokensPerItem;
  auto write = [&](int64_t item, int) {
    const int32_t h = static_cast<int32_t>(item % layout.num_kv_heads);
    const int64_t begin = item / layout.num_kv_heads * kTokensPerItem;
    const int64_t end = std::min(begin + kTokensPerItem, args.num_tokens);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t head_offset = int64_t{h} * layout.head_size;
      const int32_t block = static_cast<int32_t>(args.slots[t] / layout.block_size);
      const int32_t token = static_cast<int32_t>(args.slots[t] % layout.block_size);
      const bool stored = WriteToken(layout, args.k + t * args.k_stride + head_offset,
                                     args.v + t * args.v_stride + head_offset,
                                     args.kv.stripe(block, h, layout.stripe_bytes()), token);
      // Several heads of a token may say so at once.
      if (!stored && args.non_finite != nullptr) {
        std::atomic_ref<uint8_t>(args.non_finite[t]).store(1, std::memory_order_relaxed);
      }
    }
  };
  // A decode step writes a few tokens: less work than waking a thread.
  const int64_t num_items = num_runs * layout.num_kv_heads;
  if (args.num_tokens * layout.num_kv_heads * layout.head_size < kMinElementsToFork) {
    for (int64_t item = 0; item < num_items; ++item) write(item, 0);
  } else {
    context.pool.ParallelFor(num_items, write);
  }
  return absl::OkStatus();
}

}  // namespace quire::QUIRE_ISA
