#include "kernels/kv_write/kv_write.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/fp.h"
#include "gtest/gtest.h"

namespace quire {
namespace avx512sim {
absl::Status KvWrite(const KvWriteArgs& args, ExecContext& context);
}
namespace {

constexpr KvDtype kDtypes[] = {KvDtype::kF32, KvDtype::kBf16, KvDtype::kFp8E4m3, KvDtype::kFp8E5m2};

// Every implementation that this machine can run, and the AVX-512 one through SIMDe.
std::vector<Impl<KvWriteArgs>> RunnableImpls() {
  std::vector<Impl<KvWriteArgs>> impls;
  for (const Impl<KvWriteArgs>& impl : KvWriteImpls()) {
    if (impl.isa <= DetectIsa()) impls.push_back(impl);
  }
  if (DetectIsa() >= Isa::kAvx2) {
    impls.push_back({"avx512sim", Isa::kAvx2, false, &avx512sim::KvWrite});
  }
  return impls;
}

// Pages with a pattern in them, so that bytes written outside a slot show.
struct Pages {
  explicit Pages(const KvLayout& layout_in, int32_t num_blocks)
      : layout(layout_in), bytes(num_blocks * layout.page_bytes(), std::byte{0xc5}) {}
  KvLayerView view() { return {bytes.data(), layout.page_bytes()}; }
  const std::byte* k(int32_t block, int32_t head, int32_t token, int32_t dim) {
    return view().stripe(block, head, layout.stripe_bytes()) + layout.k_element_offset(token, dim);
  }
  const std::byte* v(int32_t block, int32_t head, int32_t token, int32_t dim) {
    return view().stripe(block, head, layout.stripe_bytes()) + layout.v_offset_bytes() +
           layout.v_element_offset(token, dim);
  }
  KvLayout layout;
  std::vector<std::byte> bytes;
};

absl::Status RunOn(const Impl<KvWriteArgs>& impl, const KvWriteArgs& args, int num_threads = 1) {
  ThreadPool pool(num_threads);
  ScratchArena scratch({});
  ExecContext context{pool, scratch};
  return impl.run(args, context);
}

// Values of many magnitudes: normal ones, some tiny ones and zeros, one token all zero.
std::vector<float> Values(int64_t count, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) {
    value = normal(rng);
    const uint64_t kind = rng() % 8;
    if (kind == 0) value *= std::ldexp(1.0f, -static_cast<int>(rng() % 30));
    if (kind == 1) value = 0.0f;
  }
  return x;
}

struct Case {
  const char* name;
  int32_t block_size, num_kv_heads, head_size;
  int64_t num_tokens, stride_padding;
};
constexpr Case kCases[] = {
    {"no_tokens", 16, 1, 16, 0, 0},    {"one", 16, 1, 16, 1, 0},
    {"odd_heads", 16, 3, 48, 15, 5},   {"a_block", 16, 2, 80, 16, 0},
    {"past_a_run", 16, 8, 128, 17, 0}, {"blocks_of_32", 32, 2, 96, 70, 1},
};

TEST(KvWrite, EveryImplementationWritesTheBytesOfTheReference) {
  std::mt19937_64 rng(1);
  for (const Case& c : kCases) {
    for (KvDtype dtype : kDtypes) {
      const KvLayout layout{dtype, c.block_size, 1, c.num_kv_heads, c.head_size};
      const int64_t stride = int64_t{c.num_kv_heads} * c.head_size + c.stride_padding;
      const std::vector<float> k = Values(c.num_tokens * stride, rng);
      std::vector<float> v = Values(c.num_tokens * stride, rng);
      if (c.num_tokens > 0) std::fill(v.begin(), v.begin() + stride, 0.0f);
      const int32_t num_blocks = static_cast<int32_t>(c.num_tokens / c.block_size) + 2;
      std::vector<int64_t> slots(num_blocks * c.block_size);
      for (size_t i = 0; i < slots.size(); ++i) slots[i] = i;
      std::shuffle(slots.begin(), slots.end(), rng);
      Pages want(layout, num_blocks);
      KvWriteArgs args{k.data(), stride,       v.data(),     stride, want.view(),
                       layout,   c.num_tokens, slots.data(), nullptr};
      ASSERT_TRUE(RunOn(KvWriteImpls()[0], args).ok());
      for (const Impl<KvWriteArgs>& impl : RunnableImpls()) {
        for (int num_threads : {1, 3}) {
          SCOPED_TRACE(testing::Message() << c.name << " " << KvDtypeName(dtype) << " on "
                                          << impl.name << ", threads " << num_threads);
          Pages got(layout, num_blocks);
          args.kv = got.view();
          ASSERT_TRUE(RunOn(impl, args, num_threads).ok());
          ASSERT_TRUE(got.bytes == want.bytes);
        }
      }
    }
  }
}

TEST(KvWrite, PlacesElementsAsTheLayoutSays) {
  const KvLayout layout{KvDtype::kF32, 16, 1, 2, 32};
  Pages pages(layout, 3);
  std::vector<float> k(64), v(64);
  for (int i = 0; i < 64; ++i) k[i] = i, v[i] = 1000 + i;
  const int64_t slot = 2 * 16 + 5;
  const KvWriteArgs args{k.data(), 64, v.data(), 64, pages.view(), layout, 1, &slot, nullptr};
  ASSERT_TRUE(RunOn(KvWriteImpls()[1], args).ok());
  for (int32_t h = 0; h < 2; ++h) {
    for (int32_t d = 0; d < 32; ++d) {
      float got;
      std::memcpy(&got, pages.k(2, h, 5, d), 4);
      EXPECT_EQ(got, h * 32 + d);
      std::memcpy(&got, pages.v(2, h, 5, d), 4);
      EXPECT_EQ(got, 1000 + h * 32 + d);
    }
  }
}

// Ties, binade edges, subnormal codes: the vector forms against the definition, many scales.
TEST(KvWrite, EveryCodeAndTieIsRounded) {
  std::mt19937_64 rng(2);
  for (KvDtype dtype : {KvDtype::kFp8E4m3, KvDtype::kFp8E5m2}) {
    const float max = dtype == KvDtype::kFp8E4m3 ? E4m3::kMax : E5m2::kMax;
    const KvLayout layout{dtype, 16, 1, 1, 512};
    // Midpoints between neighbours and their neighbours in F32, times a power of two scale.
    std::vector<float> x(512, 0.0f);
    x[0] = max;
    for (int code = 0; code < 126; ++code) {
      const bool e4m3 = dtype == KvDtype::kFp8E4m3;
      if (code + 1 > (e4m3 ? E4m3::kMaxCode : E5m2::kMaxCode)) break;
      const float a = e4m3 ? Fp8ToF32<E4m3>(code) : Fp8ToF32<E5m2>(code);
      const float b = e4m3 ? Fp8ToF32<E4m3>(code + 1) : Fp8ToF32<E5m2>(code + 1);
      const float middle = 0.5f * (a + b);
      x[4 * code + 1] = middle;
      x[4 * code + 2] = -std::nextafter(middle, 0.0f);
      x[4 * code + 3] = std::nextafter(middle, INFINITY);
      x[4 * code + 4] = -a;
    }
    for (float factor : {1.0f, 0x1p-10f, 0x1p-20f, 0x1.8p-3f, 60000.0f, 3e-7f, 1e30f}) {
      std::vector<float> scaled = x;
      for (float& value : scaled) value *= factor;
      const int64_t slot = 3;
      Pages want(layout, 1);
      KvWriteArgs args{scaled.data(), 512, scaled.data(), 512,    want.view(),
                       layout,        1,   &slot,         nullptr};
      ASSERT_TRUE(RunOn(KvWriteImpls()[0], args).ok());
      for (const Impl<KvWriteArgs>& impl : RunnableImpls()) {
        SCOPED_TRACE(testing::Message()
                     << KvDtypeName(dtype) << " times " << factor << " on " << impl.name);
        Pages got(layout, 1);
        args.kv = got.view();
        ASSERT_TRUE(RunOn(impl, args).ok());
        ASSERT_TRUE(got.bytes == want.bytes);
      }
    }
  }
}

// Half a code's distance at most: 2^-4 (e4m3) or 2^-3 (e5m2) relative, or half the subnormal grid.
TEST(KvWrite, QuantisedValuesAreNear) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x = Values(64, rng);
    for (float& value : x) value *= std::ldexp(1.0f, round % 30 - 20);
    uint8_t codes[64];
    float scale = F16ToF32(QuantizeFp8Vector(x.data(), 64, KvDtype::kFp8E4m3, codes));
    for (int i = 0; i < 64; ++i) {
      const float bound = std::max(std::fabs(x[i]) * 0x1.001p-4f, scale * 0x1.001p-10f);
      EXPECT_LE(std::fabs(Fp8ToF32<E4m3>(codes[i]) * scale - x[i]), bound) << x[i];
    }
    scale = F16ToF32(QuantizeFp8Vector(x.data(), 64, KvDtype::kFp8E5m2, codes));
    for (int i = 0; i < 64; ++i) {
      const float bound = std::max(std::fabs(x[i]) * 0x1.001p-3f, scale * 0x1.001p-17f);
      EXPECT_LE(std::fabs(Fp8ToF32<E5m2>(codes[i]) * scale - x[i]), bound) << x[i];
    }
  }
}

struct QuantizedRow {
  uint32_t x[8];  // F32 bits
  uint16_t scale;
  uint8_t codes[8];
};

// tests/data/cases_public, pub-g-fp8_e4m3: codes by an independent cast.
constexpr QuantizedRow kPublicRows[] = {
    {{0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000,
      0x00000000},
     0x0000,
     {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {{0x00000000, 0x80000000, 0x00000000, 0x80000000, 0x00000000, 0x80000000, 0x00000000,
      0x80000000},
     0x0000,
     {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {{0x43e00000, 0x3f800000, 0x3f000000, 0xbe800000, 0x40400000, 0x41880000, 0xc3df8000,
      0x3c800000},
     0x3c00,
     {0x7e, 0x38, 0x30, 0xa8, 0x44, 0x58, 0xfe, 0x08}},
    {{0x30800000, 0x30800000, 0x30800000, 0x30800000, 0x00000000, 0x00000000, 0x00000000,
      0x00000000},
     0x0001,
     {0x08, 0x08, 0x08, 0x08, 0x00, 0x00, 0x00, 0x00}},
    {{0x322bcc77, 0xb22bcc77, 0x3300d959, 0x00000000, 0x00000000, 0x00000000, 0x00000000,
      0x00000000},
     0x0001,
     {0x23, 0xa3, 0x30, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {{0x461c4000, 0x38d1b717, 0xbf800000, 0x40000000, 0x40400000, 0x40800000, 0x40a00000,
      0x40c00000},
     0x4d95,
     {0x7e, 0x00, 0x93, 0x1b, 0x21, 0x23, 0x26, 0x29}},
    {{0x4bc7e700, 0x3f800000, 0x40000000, 0x40400000, 0x00000000, 0x00000000, 0x00000000,
      0x00000000},
     0x7b24,
     {0x7e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {{0x3aa13d19, 0x3e98f52d, 0xbe8c5bcc, 0xbf63fdd4, 0xbee8ca9c, 0xbf7ddc8c, 0x3d765923,
      0x3fab8c2c},
     0x1a21,
     {0x2d, 0x6c, 0xeb, 0xf9, 0xf1, 0xfa, 0x5a, 0x7e}},
    {{0xbefc027e, 0xbf1ed771, 0x3efacc94, 0x3eb6b9e5, 0x3dd7e36d, 0xbf6e3327, 0xbcefa185,
      0x3f31ff64},
     0x1841,
     {0xf7, 0xf9, 0x77, 0x73, 0x65, 0xfe, 0xd6, 0x7a}},
    {{0xbfac0f39, 0xbeea4c9d, 0xbff35b44, 0xbfa50f93, 0xbfebbdf9, 0xbe70bbbb, 0xbfa23bb0,
      0x3e8ae329},
     0x1c59,
     {0xfa, 0xed, 0xfe, 0xf9, 0xfe, 0xe6, 0xf9, 0x68}},
};

TEST(KvWrite, PublicCaseFp8E4m3) {
  for (const QuantizedRow& row : kPublicRows) {
    float x[8];
    std::memcpy(x, row.x, sizeof(x));
    uint8_t codes[8];
    const uint16_t scale = QuantizeFp8Vector(x, 8, KvDtype::kFp8E4m3, codes);
    EXPECT_EQ(scale, row.scale);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], row.codes[i]) << "element " << i;
  }
}

// e5m2 by hand: 57344 and its half, a tie between 1 and 1.25, the smallest subnormal and half of
// it.
TEST(KvWrite, E5m2ByHand) {
  const float x[8] = {57344.0f, -28672.0f, 1.125f, 1.375f, 0x1p-16f, 0x1p-17f, 0x1.8p-16f, -0.0f};
  uint8_t codes[8];
  EXPECT_EQ(QuantizeFp8Vector(x, 8, KvDtype::kFp8E5m2, codes), 0x3c00);
  const uint8_t want[8] = {0x7b, 0xf7, 0x3c, 0x3e, 0x01, 0x00, 0x02, 0x80};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], want[i]) << "element " << i;
}

TEST(KvWrite, NonFiniteTokensAreFlaggedAndOthersWritten) {
  constexpr float kBad[] = {NAN, -NAN, INFINITY, -INFINITY};
  std::mt19937_64 rng(4);
  for (KvDtype dtype : kDtypes) {
    const KvLayout layout{dtype, 16, 1, 2, 64};
    std::vector<float> k = Values(6 * 128, rng), v = Values(6 * 128, rng);
    const std::vector<float> clean_k = k, clean_v = v;
    k[1 * 128 + 127] = kBad[rng() % 4];
    v[3 * 128 + 5] = kBad[rng() % 4];
    k[4 * 128] = k[4 * 128 + 64] = NAN;
    const int64_t slots[] = {0, 1, 2, 3, 4, 5};
    Pages want(layout, 1);
    KvWriteArgs args{clean_k.data(), 128, clean_v.data(), 128,    want.view(),
                     layout,         6,   slots,          nullptr};
    ASSERT_TRUE(RunOn(KvWriteImpls()[0], args).ok());
    for (const Impl<KvWriteArgs>& impl : RunnableImpls()) {
      SCOPED_TRACE(testing::Message() << KvDtypeName(dtype) << " on " << impl.name);
      Pages got(layout, 1);
      std::vector<uint8_t> non_finite(6, 0);
      args.k = k.data(), args.v = v.data(), args.kv = got.view();
      args.non_finite = non_finite.data();
      ASSERT_TRUE(RunOn(impl, args, 2).ok());
      EXPECT_EQ(non_finite, (std::vector<uint8_t>{0, 1, 0, 1, 1, 0}));
      for (int32_t token : {0, 2, 5}) {
        for (int32_t h = 0; h < 2; ++h) {
          for (int32_t d = 0; d < 64; ++d) {
            const int n = KvElementBytes(dtype);
            ASSERT_EQ(std::memcmp(got.k(0, h, token, d), want.k(0, h, token, d), n), 0);
            ASSERT_EQ(std::memcmp(got.v(0, h, token, d), want.v(0, h, token, d), n), 0);
          }
        }
      }
      args.non_finite = nullptr;
      EXPECT_TRUE(RunOn(impl, args).ok());
    }
  }
}

TEST(KvWrite, Bf16OverflowIsNonFinite) {
  const KvLayout layout{KvDtype::kBf16, 16, 1, 1, 16};
  std::vector<float> k(32, 1.0f), v(32, 1.0f);
  k[3] = std::bit_cast<float>(0x7f7f7fffu);   // the largest that rounds to a finite BF16
  v[16] = std::bit_cast<float>(0x7f7f8000u);  // rounds to infinity
  const int64_t slots[] = {0, 1};
  for (const Impl<KvWriteArgs>& impl : RunnableImpls()) {
    SCOPED_TRACE(impl.name);
    Pages pages(layout, 1);
    uint8_t non_finite[2] = {};
    const KvWriteArgs args{k.data(), 16, v.data(), 16, pages.view(), layout, 2, slots, non_finite};
    ASSERT_TRUE(RunOn(impl, args).ok());
    EXPECT_EQ(non_finite[0], 0);
    EXPECT_EQ(non_finite[1], 1);
  }
}

TEST(KvWrite, RefusesBadArguments) {
  const KvLayout layout{KvDtype::kBf16, 16, 1, 1, 16};
  Pages pages(layout, 1);
  const std::vector<float> x(16);
  const int64_t slot = 0, bad_slot = -1;
  const KvWriteArgs good{x.data(), 16, x.data(), 16, pages.view(), layout, 1, &slot, nullptr};
  struct Bad {
    absl::StatusCode code;
    const char* message;
    KvWriteArgs args;
  };
  std::vector<Bad> bad(7, {absl::StatusCode::kInvalidArgument, "", good});
  bad[0].args.num_tokens = -1, bad[0].message = "num_tokens is -1";
  bad[1].args.k_stride = 15, bad[1].message = "k_stride is 15";
  bad[2].args.slots = &bad_slot, bad[2].message = "slots[0] is -1";
  bad[3].args.kv.block_stride_bytes = 8, bad[3].message = "block_stride_bytes is 8";
  bad[4].args.v = nullptr, bad[4].message = "null";
  bad[5].args.layout.head_size = 24, bad[5].message = "head_size is 24";
  bad[5].code = absl::StatusCode::kUnimplemented;
  bad[6].args.layout.block_size = 8, bad[6].message = "block_size is 8";
  bad[6].code = absl::StatusCode::kUnimplemented;
  for (const Impl<KvWriteArgs>& impl : RunnableImpls()) {
    EXPECT_TRUE(RunOn(impl, good).ok());
    for (const Bad& b : bad) {
      const absl::Status status = RunOn(impl, b.args);
      EXPECT_EQ(status.code(), b.code) << b.message;
      EXPECT_NE(std::string(status.message()).find(b.message), std::string::npos) << status;
    }
  }
}

}  // namespace
}  // namespace quire
