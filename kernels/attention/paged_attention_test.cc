#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/fp.h"
#include "gtest/gtest.h"
#include "kernels/kv_write/kv_write.h"

namespace quire {
namespace avx512sim {
absl::Status PagedAttention(const PagedAttentionArgs& args, ExecContext& context);
}
namespace {

// SIMDe under a sanitizer is too slow for the large shapes; the small tests keep it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr KvDtype kDtypes[] = {KvDtype::kF32, KvDtype::kBf16, KvDtype::kFp8E4m3, KvDtype::kFp8E5m2};

struct TestImpl {
  Impl<PagedAttentionArgs> impl;
  bool bf16_operands;  // rounds q and p to BF16 where pages are not F32
  bool slow;           // through SIMDe: fewer shapes
};

std::vector<TestImpl> FastImpls() {
  std::vector<TestImpl> impls;
  for (const Impl<PagedAttentionArgs>& impl : PagedAttentionImpls()) {
    if (!impl.reference && impl.isa <= DetectIsa()) {
      impls.push_back({impl, impl.isa == Isa::kAvx512, false});
    }
  }
  if (DetectIsa() >= Isa::kAvx2) {
    impls.push_back({{"avx512sim", Isa::kAvx2, false, &avx512sim::PagedAttention}, true, true});
  }
  return impls;
}

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
struct AlignedArray {
  explicit AlignedArray(int64_t count)
      : data(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64 + 64))) {}
  std::unique_ptr<T, AlignedFree> data;
};

// The tokens of one sequence: vectors of all positions, and the rows of a call.
struct Sequence {
  std::vector<float> q, k, v;  // [num_positions][heads][head_size]
  int32_t num_positions = 0;
};

Sequence RandomSequence(const KvLayout& layout, int32_t num_q_heads, int32_t num_positions,
                        std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  Sequence s;
  s.num_positions = num_positions;
  s.q.resize(int64_t{num_positions} * num_q_heads * layout.head_size);
  s.k.resize(int64_t{num_positions} * layout.num_kv_heads * layout.head_size);
  s.v.resize(s.k.size());
  for (float& x : s.q) x = 1.5f * normal(rng);
  for (float& x : s.k) x = normal(rng);
  for (float& x : s.v) x = normal(rng);
  return s;
}

struct Rows {
  const Sequence* sequence;
  int32_t begin, end;  // positions; K and V of [0, end) are in pages
};

struct Options {
  uint64_t table_seed = 0;  // 0: blocks in order
  int num_threads = 1;
  std::byte unused{0xff};  // what unused slots hold: NaN in every type
  bool no_split_scratch = false;
};

struct Result {
  std::vector<float> out;  // rows of all sequences
  std::vector<float> lse;
};

// Everything of one call: pages filled through kv_write, tables, arguments.
class Call {
 public:
  Call(const KvLayout& layout, int32_t num_q_heads, std::vector<Rows> rows, const Options& options)
      : options_(options), pages_(0) {
    const int64_t q_row = int64_t{num_q_heads} * layout.head_size;
    const int64_t kv_row = int64_t{layout.num_kv_heads} * layout.head_size;
    int32_t num_blocks = 1;  // block 0 belongs to nobody
    for (const Rows& r : rows) num_blocks += (r.end + layout.block_size - 1) / layout.block_size;
    pages_ = AlignedArray<std::byte>(num_blocks * layout.page_bytes());
    std::memset(pages_.data.get(), static_cast<int>(options.unused),
                num_blocks * layout.page_bytes());
    const KvLayerView view{pages_.data.get(), layout.page_bytes()};
    block_ids_.resize(num_blocks - 1);
    for (int32_t i = 0; i < num_blocks - 1; ++i) block_ids_[i] = i + 1;
    std::mt19937_64 rng(options.table_seed);
    if (options.table_seed != 0) std::shuffle(block_ids_.begin(), block_ids_.end(), rng);

    q_begin_.push_back(0);
    int64_t table = 0;
    ThreadPool pool(1);
    ScratchArena no_scratch({});
    ExecContext context{pool, no_scratch};
    for (const Rows& r : rows) {
      first_position_.push_back(r.begin);
      table_begin_.push_back(table);
      q_begin_.push_back(q_begin_.back() + r.end - r.begin);
      max_context_ = std::max<int64_t>(max_context_, r.end);
      std::vector<int64_t> slots(r.end);
      for (int32_t p = 0; p < r.end; ++p) {
        slots[p] = int64_t{block_ids_[table + p / layout.block_size]} * layout.block_size +
                   p % layout.block_size;
      }
      table += (r.end + layout.block_size - 1) / layout.block_size;
      const KvWriteArgs write{
          r.sequence->k.data(), kv_row, r.sequence->v.data(), kv_row, view, layout, r.end,
          slots.data(),         nullptr};
      EXPECT_TRUE(KvWriteImpls()[1].run(write, context).ok());
      q_.insert(q_.end(), r.sequence->q.begin() + r.begin * q_row,
                r.sequence->q.begin() + r.end * q_row);
    }
    args_.q = q_.data();
    args_.q_stride = args_.out_stride = q_row;
    args_.kv = view;
    args_.layout = layout;
    args_.num_q_heads = num_q_heads;
    args_.scale = 1.0f / std::sqrt(static_cast<float>(layout.head_size));
    args_.num_seqs = static_cast<int32_t>(rows.size());
    args_.q_begin = q_begin_.data();
    args_.first_position = first_position_.data();
    args_.table_begin = table_begin_.data();
    args_.block_ids = block_ids_.data();
  }

  PagedAttentionArgs& args() { return args_; }
  std::vector<float>& q() { return q_; }
  std::byte* stripe(int32_t block, int32_t head) {
    return args_.kv.stripe(block, head, args_.layout.stripe_bytes());
  }

  Result Run(const Impl<PagedAttentionArgs>& impl) {
    const int64_t num_rows = q_begin_.back();
    Result result;
    result.out.assign(num_rows * args_.q_stride, -77.0f);
    result.lse.assign(num_rows * args_.num_q_heads, -77.0f);
    args_.out = result.out.data();
    args_.lse = result.lse.data();
    ThreadPool pool(options_.num_threads);
    int64_t bytes = PagedAttentionScratchBytes(args_.layout, args_.num_q_heads, num_rows,
                                               max_context_, options_.num_threads);
    if (options_.no_split_scratch) {
      // What a call on that many threads takes without partial results.
      bytes = options_.num_threads *
              PagedAttentionScratchBytes(args_.layout, args_.num_q_heads, num_rows, 1, 1);
    }
    AlignedArray<std::byte> memory(bytes);
    ScratchArena scratch({memory.data.get(), static_cast<size_t>(bytes)});
    ExecContext context{pool, scratch};
    EXPECT_TRUE(impl.run(args_, context).ok());
    return result;
  }

 private:
  Options options_;
  AlignedArray<std::byte> pages_;
  std::vector<float> q_;
  std::vector<int32_t> block_ids_, q_begin_, first_position_;
  std::vector<int64_t> table_begin_;
  int64_t max_context_ = 0;
  PagedAttentionArgs args_;
};

double Norm(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{x[i]} * x[i];
  return std::sqrt(sum);
}

// `got` against the double-precision reference.
//
// Every logit is off by at most e = (rounding of q) + (rounding of the sum of D products), where a
// logit's terms add up to at most scale |q| |k|; a probability is off by 2e relative plus the sum's
// and exp's rounding; so the output is off by (2e + ...) max |v|, and lse by e + .... On random
// data errors and values average alike, so the relative error of a row is held to the root of
// that count as well (factor 8 over the expected size).
void ExpectNear(const Result& got, const Result& want, const Call& call_const, double max_k_norm,
                double max_v, bool bf16_operands) {
  Call& call = const_cast<Call&>(call_const);
  const PagedAttentionArgs& args = call.args();
  const int32_t d = args.layout.head_size;
  constexpr double u = 0x1p-24;
  const double operand = bf16_operands && args.layout.dtype != KvDtype::kF32 ? 0x1p-9 : u;
  const int64_t num = static_cast<int64_t>(want.lse.size());
  for (int64_t i = 0; i < num; ++i) {
    const double terms = args.scale * Norm(call.q().data() + i * d, d) * max_k_norm;
    const double logit = (operand + (d + 2) * u) * terms;
    const double bound = (2 * logit + 2 * operand + 600 * u) * max_v;
    double error = 0;
    for (int32_t j = 0; j < d; ++j) {
      const double difference = double{got.out[i * d + j]} - want.out[i * d + j];
      ASSERT_LE(std::fabs(difference), bound) << "row and head " << i << " dim " << j;
      error += difference * difference;
    }
    const double relative = 8 * (operand + std::sqrt(d) * u) * (1 + terms / std::sqrt(d)) + 64 * u;
    ASSERT_LE(std::sqrt(error), relative * Norm(want.out.data() + i * d, d))
        << "row and head " << i;
    ASSERT_NEAR(got.lse[i], want.lse[i], logit + 16 * u * (1 + std::fabs(want.lse[i]))) << i;
  }
}

double MaxKNorm(const Sequence& s, int32_t head_size) {
  double max = 0;
  for (size_t i = 0; i < s.k.size(); i += head_size) {
    max = std::max(max, Norm(s.k.data() + i, head_size));
  }
  return 1.2 * max;  // e5m2 may round up by 1/8
}

struct Case {
  const char* name;
  int32_t block_size, num_kv_heads, group, head_size;
  std::vector<std::pair<int32_t, int32_t>> rows;  // [begin, end) of each sequence
  bool also_slow;
};

std::vector<Case> Cases() {
  return {
      {"no_sequence", 16, 1, 1, 16, {}, true},
      {"no_rows", 16, 1, 2, 16, {{0, 0}, {7, 7}, {4, 5}}, true},
      {"one_token", 16, 2, 1, 64, {{0, 1}}, true},
      {"short_contexts", 16, 1, 2, 128, {{14, 15}, {15, 16}, {16, 17}}, true},
      {"chunk_edges",
       16,
       1,
       3,
       48,
       {{254, 255}, {255, 256}, {256, 257}, {510, 511}, {512, 513}},
       true},
      {"long_decode", 16, 2, 2, 128, {{999, 1000}}, false},
      {"mixed", 16, 1, 4, 80, {{0, 33}, {64, 65}, {240, 275}, {300, 301}}, true},
      {"prefill_blocks_of_32", 32, 1, 7, 96, {{0, 50}, {31, 32}, {250, 262}}, false},
      {"group_8", 16, 1, 8, 64, {{0, 19}, {500, 515}}, false},
      {"group_20", 32, 1, 20, 16, {{3, 6}, {40, 41}}, true},
      {"head_256", 16, 1, 2, 256, {{30, 40}, {270, 271}}, false},
      {"head_112", 16, 3, 1, 112, {{0, 17}, {255, 258}}, false},
  };
}

TEST(PagedAttention, MatchesReference) {
  std::mt19937_64 rng(11);
  for (const Case& c : Cases()) {
    for (KvDtype dtype : kDtypes) {
      const KvLayout layout{dtype, c.block_size, 1, c.num_kv_heads, c.head_size};
      const int32_t num_q_heads = c.num_kv_heads * c.group;
      std::vector<Sequence> sequences;
      for (const auto& [begin, end] : c.rows) {
        sequences.push_back(RandomSequence(layout, num_q_heads, end, rng));
      }
      std::vector<Rows> rows;
      double max_k = 0, max_v = 1;
      for (size_t i = 0; i < c.rows.size(); ++i) {
        rows.push_back({&sequences[i], c.rows[i].first, c.rows[i].second});
        max_k = std::max(max_k, MaxKNorm(sequences[i], c.head_size));
        for (float x : sequences[i].v) max_v = std::max<double>(max_v, std::fabs(x));
      }
      Call call(layout, num_q_heads, rows, {.table_seed = 5});
      const Result want = call.Run(PagedAttentionImpls()[0]);
      for (const TestImpl& test : FastImpls()) {
        if (test.slow && (kSanitized || !c.also_slow)) continue;
        SCOPED_TRACE(testing::Message()
                     << c.name << " " << KvDtypeName(dtype) << " on " << test.impl.name);
        ExpectNear(call.Run(test.impl), want, call, max_k, max_v, test.bf16_operands);
      }
    }
  }
}

// The rows of a sequence, computed in calls of `step` rows.
Result InSteps(const KvLayout& layout, int32_t num_q_heads, const Sequence& s, int32_t begin,
               int32_t end, int32_t step, const Options& options,
               const Impl<PagedAttentionArgs>& impl) {
  Result all;
  for (int32_t b = begin; b < end; b += step) {
    const Result part =
        Call(layout, num_q_heads, {{&s, b, std::min(end, b + step)}}, options).Run(impl);
    all.out.insert(all.out.end(), part.out.begin(), part.out.end());
    all.lse.insert(all.lse.end(), part.lse.begin(), part.lse.end());
  }
  return all;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct ShapeCase {
  int32_t num_kv_heads, group, head_size;
};

TEST(PagedAttention, SameBitsInAnyChunkingBatchTableThreadsAndBlockSize) {
  std::mt19937_64 rng(12);
  for (const ShapeCase& c : {ShapeCase{2, 2, 32}, ShapeCase{1, 3, 80}, ShapeCase{1, 7, 16}}) {
    for (KvDtype dtype : kDtypes) {
      const KvLayout layout{dtype, 16, 1, c.num_kv_heads, c.head_size};
      const int32_t heads = c.num_kv_heads * c.group;
      for (const TestImpl& test : FastImpls()) {
        if (test.slow && kSanitized) continue;
        SCOPED_TRACE(testing::Message()
                     << KvDtypeName(dtype) << " on " << test.impl.name << " group " << c.group);
        const int32_t end = test.slow ? 275 : 530;
        const int32_t begin = end - 40;
        const Sequence s = RandomSequence(layout, heads, end, rng);
        const Sequence other = RandomSequence(layout, heads, 300, rng);
        const Result base = Call(layout, heads, {{&s, begin, end}}, {}).Run(test.impl);

        for (int32_t step : {1, 3, 16}) {
          const Result got =
              InSteps(layout, heads, s, begin, end, step, {.table_seed = 3}, test.impl);
          EXPECT_TRUE(SameBits(got.out, base.out)) << "in steps of " << step;
          EXPECT_TRUE(SameBits(got.lse, base.lse)) << "in steps of " << step;
        }
        for (int num_threads : {2, 3, 4}) {
          Options options{.table_seed = 4, .num_threads = num_threads};
          Result got = Call(layout, heads, {{&s, begin, end}}, options).Run(test.impl);
          EXPECT_TRUE(SameBits(got.out, base.out)) << num_threads << " threads";
          options.no_split_scratch = true;
          got = Call(layout, heads, {{&s, begin, end}}, options).Run(test.impl);
          EXPECT_TRUE(SameBits(got.out, base.out)) << num_threads << " threads, nothing split";
          got = InSteps(layout, heads, s, end - 2, end, 1, {.num_threads = num_threads}, test.impl);
          EXPECT_TRUE(std::equal(got.out.rbegin(), got.out.rend(), base.out.rbegin()))
              << num_threads << " threads, decode";
        }
        {
          const Rows mine{&s, begin, end};
          const Result got = Call(layout, heads, {{&other, 0, 9}, mine, {&other, 299, 300}},
                                  {.table_seed = 6, .num_threads = 2})
                                 .Run(test.impl);
          const int64_t row = int64_t{heads} * c.head_size;
          EXPECT_EQ(std::memcmp(got.out.data() + 9 * row, base.out.data(), base.out.size() * 4), 0)
              << "among others";
        }
        KvLayout wide = layout;
        wide.block_size = 32;
        const Result got = Call(wide, heads, {{&s, begin, end}}, {.table_seed = 7}).Run(test.impl);
        EXPECT_TRUE(SameBits(got.out, base.out)) << "blocks of 32";
        EXPECT_TRUE(SameBits(got.lse, base.lse)) << "blocks of 32";
      }
    }
  }
}

// tests/data/cases_public, pub-g-nan_stays_alone, the kernel's part (context 5), and siblings.
TEST(PagedAttention, UnusedSlotsMayHoldAnything) {
  std::mt19937_64 rng(13);
  for (KvDtype dtype : kDtypes) {
    for (int32_t block_size : {16, 32}) {
      const KvLayout layout{dtype, block_size, 1, 1, 64};
      for (int32_t context : {1, 2, 3, 5, 15, 16, 17, 30, 31, 257}) {
        const Sequence s = RandomSequence(layout, 2, context, rng);
        const std::vector<Rows> rows = {{&s, context - 1, context}};
        for (const TestImpl& test : FastImpls()) {
          SCOPED_TRACE(testing::Message()
                       << KvDtypeName(dtype) << " on " << test.impl.name << " context " << context);
          const Result want = Call(layout, 2, rows, {.unused = std::byte{0}}).Run(test.impl);
          for (int unused : {0xff, 0x7f, 0x7c, 0x80}) {  // NaN, 0x7F codes, infinity, -0
            const Result got = Call(layout, 2, rows, {.unused = std::byte(unused)}).Run(test.impl);
            EXPECT_TRUE(SameBits(got.out, want.out)) << unused;
            EXPECT_TRUE(SameBits(got.lse, want.lse)) << unused;
          }
        }
      }
    }
  }
}

TEST(PagedAttention, ANanQueryStaysInItsRow) {
  std::mt19937_64 rng(14);
  for (KvDtype dtype : kDtypes) {
    const KvLayout layout{dtype, 16, 1, 1, 32};
    const Sequence s = RandomSequence(layout, 2, 20, rng);
    for (const TestImpl& test : FastImpls()) {
      SCOPED_TRACE(testing::Message() << KvDtypeName(dtype) << " on " << test.impl.name);
      Call call(layout, 2, {{&s, 10, 20}}, {});
      const Result want = call.Run(test.impl);
      call.q()[(3 * 2 + 1) * 32 + 5] = NAN;  // row 3, head 1
      const Result got = call.Run(test.impl);
      for (int64_t i = 0; i < 10 * 2; ++i) {
        for (int32_t d = 0; d < 32; ++d) {
          if (i == 3 * 2 + 1) {
            EXPECT_TRUE(std::isnan(got.out[i * 32 + d]));
          } else {
            EXPECT_EQ(got.out[i * 32 + d], want.out[i * 32 + d]) << i;
          }
        }
      }
    }
  }
}

// A context of one position: lse is the logit, and out is V. Row i asks for dim i of K.
TEST(PagedAttention, EveryFp8CodeIsExact) {
  for (KvDtype dtype : {KvDtype::kFp8E4m3, KvDtype::kFp8E5m2}) {
    const KvLayout layout{dtype, 16, 1, 1, 256};
    Sequence s;
    s.num_positions = 1;
    s.q.assign(256, 0.0f), s.k.assign(256, 1.0f), s.v.assign(256, 1.0f);
    Call call(layout, 1, std::vector<Rows>(256, {&s, 0, 1}), {});
    const float k_scale = 0.375f, v_scale = 0x1p-5f;
    for (int32_t i = 0; i < 256; ++i) {
      std::byte* stripe = call.stripe(1 + i, 0);
      for (int32_t d = 0; d < 256; ++d) {
        const uint8_t code = static_cast<uint8_t>(d);
        const bool finite = (code & 0x7f) <= (dtype == KvDtype::kFp8E4m3 ? 0x7e : 0x7b);
        stripe[layout.k_element_offset(0, d)] = std::byte{finite ? code : uint8_t{0}};
        stripe[layout.v_offset_bytes() + layout.v_element_offset(0, d)] =
            std::byte{finite ? code : uint8_t{0}};
      }
      const uint16_t k_half = F32ToF16(k_scale), v_half = F32ToF16(v_scale);
      std::memcpy(stripe + layout.k_scale_offset_bytes(), &k_half, 2);
      std::memcpy(stripe + layout.v_scale_offset_bytes(), &v_half, 2);
      call.q()[i * 256 + i] = 1.0f;
    }
    call.args().scale = 1.0f;
    for (const TestImpl& test : FastImpls()) {
      SCOPED_TRACE(testing::Message() << KvDtypeName(dtype) << " on " << test.impl.name);
      const Result got = call.Run(test.impl);
      for (int32_t code = 0; code < 256; ++code) {
        if ((code & 0x7f) > (dtype == KvDtype::kFp8E4m3 ? 0x7e : 0x7b)) continue;
        const float value =
            dtype == KvDtype::kFp8E4m3 ? Fp8ToF32<E4m3>(code) : Fp8ToF32<E5m2>(code);
        EXPECT_EQ(got.lse[code], value * k_scale) << code;
        EXPECT_EQ(got.out[code * 256 + code], value * v_scale) << code;
      }
    }
  }
}

// Logits far apart: later chunks dwarf earlier ones and the other way round.
TEST(PagedAttention, LargeLogitsDoNotOverflow) {
  std::mt19937_64 rng(15);
  const KvLayout layout{KvDtype::kF32, 16, 1, 1, 16};
  for (float sign : {1.0f, -1.0f}) {
    Sequence s = RandomSequence(layout, 1, 600, rng);
    for (int32_t p = 0; p < 600; ++p) {
      for (int32_t d = 0; d < 16; ++d) s.k[p * 16 + d] = sign * 0.5f * p;
    }
    for (float& x : s.q) x = 1.0f;
    Call call(layout, 1, {{&s, 599, 600}}, {});
    const Result want = call.Run(PagedAttentionImpls()[0]);
    for (const TestImpl& test : FastImpls()) {
      SCOPED_TRACE(test.impl.name);
      const Result got = call.Run(test.impl);
      for (int32_t d = 0; d < 16; ++d) EXPECT_NEAR(got.out[d], want.out[d], 1e-5);
      EXPECT_NEAR(got.lse[0], want.lse[0], std::fabs(want.lse[0]) * 1e-6 + 1e-6);
    }
  }
}

TEST(PagedAttention, RunsWithoutLse) {
  std::mt19937_64 rng(16);
  const KvLayout layout{KvDtype::kBf16, 16, 1, 1, 32};
  const Sequence s = RandomSequence(layout, 1, 3, rng);
  for (const Impl<PagedAttentionArgs>& impl : PagedAttentionImpls()) {
    if (impl.isa > DetectIsa()) continue;
    Call call(layout, 1, {{&s, 0, 3}}, {});
    std::vector<float> out(3 * 32, NAN);
    const int64_t bytes = PagedAttentionScratchBytes(layout, 1, 3, 3, 1);
    AlignedArray<std::byte> memory(bytes);
    ScratchArena scratch({memory.data.get(), static_cast<size_t>(bytes)});
    ThreadPool pool(1);
    ExecContext context{pool, scratch};
    call.args().out = out.data();
    ASSERT_TRUE(impl.run(call.args(), context).ok());
    for (float x : out) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(PagedAttention, RefusesBadArguments) {
  std::mt19937_64 rng(17);
  const KvLayout layout{KvDtype::kBf16, 16, 1, 2, 32};
  const Sequence s = RandomSequence(layout, 4, 3, rng);
  Call call(layout, 4, {{&s, 0, 3}}, {});
  float out[3 * 4 * 32];
  PagedAttentionArgs good = call.args();
  good.out = out;
  const int32_t descending[] = {3, 0};
  const int32_t negative[] = {-1};
  struct Bad {
    absl::StatusCode code;
    const char* message;
    PagedAttentionArgs args;
  };
  std::vector<Bad> bad(9, {absl::StatusCode::kInvalidArgument, "", good});
  bad[0].args.num_q_heads = 3, bad[0].message = "num_q_heads is 3";
  bad[1].args.num_seqs = -2, bad[1].message = "num_seqs is -2";
  bad[2].args.q_stride = 127, bad[2].message = "q_stride is 127";
  bad[3].args.kv.block_stride_bytes = 1, bad[3].message = "block_stride_bytes is 1";
  bad[4].args.q_begin = descending, bad[4].message = "q_begin[0] is 3";
  bad[5].args.first_position = negative, bad[5].message = "first_position[0] is -1";
  bad[6].args.q = nullptr, bad[6].message = "null";
  bad[7].args.layout.head_size = 40, bad[7].message = "head_size is 40";
  bad[7].code = absl::StatusCode::kUnimplemented;
  bad[8].args.layout.block_size = 64, bad[8].message = "block_size is 64";
  bad[8].code = absl::StatusCode::kUnimplemented;
  ThreadPool pool(1);
  ScratchArena scratch({});
  ExecContext context{pool, scratch};
  for (const Impl<PagedAttentionArgs>& impl : PagedAttentionImpls()) {
    if (impl.isa > DetectIsa()) continue;
    for (const Bad& b : bad) {
      const absl::Status status = impl.run(b.args, context);
      EXPECT_EQ(status.code(), b.code) << b.message;
      EXPECT_NE(std::string(status.message()).find(b.message), std::string::npos) << status;
    }
  }
}

}  // namespace
}  // namespace quire
