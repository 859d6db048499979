// Every implementation against the definition, and against itself: a row's result depends on
// nothing but that row.
#include <algorithm>
#include <memory>

#include "kernels/gemm/gemm_simd.h"
#include "kernels/gemm/gemm_test_util.h"

namespace quire::gemm_test {
namespace {

absl::Status RunSimulated(const GemmArgs& args, ExecContext& context) {
  static constexpr GemmFamily kFamily = {"avx512sim", true, avx512sim::GemmFloat,
                                         avx512sim::GemmInt8, avx512sim::GemmInt4};
  return RunGemmFamily(kFamily, args, context);
}

struct Candidate {
  const char* name;
  Isa pack;
  bool slow;  // simulated: fewer cases
  absl::Status (*run)(const GemmArgs&, ExecContext&);
};

// What this machine can run, with the packing that each reads.
std::vector<Candidate> Candidates() {
  std::vector<Candidate> all;
  for (const Impl<GemmArgs>& impl : GemmImpls()) {
    if (impl.reference || impl.isa > DetectIsa()) continue;
    all.push_back({impl.name, impl.isa, false, impl.run});
  }
  if (DetectIsa() >= Isa::kAvx2) {  // SIMDe's build has AVX2 code
    all.push_back({"avx512 simulated", Isa::kAvx512, true, RunSimulated});
  }
  return all;
}

// Runs with scratch of exactly GemmScratchBytes(max_m), filled with NaN.
class Runner {
 public:
  explicit Runner(int num_threads) : pool_(num_threads) {}

  absl::Status Run(absl::Status (*run)(const GemmArgs&, ExecContext&), const GemmArgs& args,
                   int64_t max_m) {
    const int64_t bytes = GemmScratchBytes(args.w->form, args.w->isa, max_m, args.w->n, args.w->k,
                                           pool_.num_threads());
    storage_.assign(static_cast<size_t>(bytes + 64), std::byte{0xff});
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    ScratchArena scratch({storage_.data() + (64 - address % 64) % 64, static_cast<size_t>(bytes)});
    ExecContext context{pool_, scratch};
    return run(args, context);
  }

 private:
  ThreadPool pool_;
  std::vector<std::byte> storage_;
};

std::vector<float> RandomRows(int64_t m, int64_t k, int64_t stride, float magnitude,
                              std::mt19937_64& rng) {
  std::normal_distribution<float> gauss(0.0f, 1.0f);
  std::vector<float> x(static_cast<size_t>(m * stride), NAN);  // padding that is read will show
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) x[static_cast<size_t>(i * stride + j)] = gauss(rng) * magnitude;
  }
  return x;
}

// sum_k |x| |w| of an output, what errors are relative to.
double SumOfMagnitudes(const float* x, const float* w, int64_t k) {
  double sum = 0.0;
  for (int64_t i = 0; i < k; ++i) {
    sum += std::fabs(static_cast<double>(x[i])) * std::fabs(static_cast<double>(w[i]));
  }
  return sum;
}

struct Shape {
  int64_t m, n, k;
};

void CheckAgainstReference(const Candidate& impl, const Canonical& canonical, const Shape& s,
                           float x_magnitude, bool with_bias, bool accumulate,
                           std::mt19937_64& rng) {
  SCOPED_TRACE(testing::Message() << impl.name << " " << WeightFormName(canonical.form) << " m "
                                  << s.m << " n " << s.n << " k " << s.k);
  const Packed p = PackAll(canonical, impl.pack);
  const int64_t x_stride = s.k + 5, y_stride = s.n + 3;
  const std::vector<float> x = RandomRows(s.m, s.k, x_stride, x_magnitude, rng);
  const std::vector<float> bias = RandomRows(1, s.n, s.n, 1.0f, rng);
  std::vector<float> got(static_cast<size_t>(s.m * y_stride), NAN);
  if (accumulate) {
    for (int64_t i = 0; i < s.m * y_stride; ++i) {
      if (i % y_stride < s.n) got[static_cast<size_t>(i)] = static_cast<float>(i % 7) - 3.0f;
    }
  }
  const std::vector<float> before = got;
  std::vector<float> want = got;
  GemmArgs args{x.data(),    x_stride, &p.matrix, with_bias ? bias.data() : nullptr,
                want.data(), y_stride, s.m,       accumulate};
  Runner runner(2);
  ASSERT_TRUE(runner.Run(GemmImpls()[0].run, args, s.m).ok());
  args.y = got.data();
  ASSERT_TRUE(runner.Run(impl.run, args, s.m).ok());

  // An F32 chain of k products errs by at most k * 2^-24 of the sum of magnitudes (twice that
  // where products are rounded too), scales and the weight's own rounding by a few 2^-24 more.
  // BF16 activations are off by 2^-9 each.
  const bool rounds_to_bf16 =
      impl.pack == Isa::kAvx512 && IsFloat(canonical.form) && canonical.form != WeightForm::kF32;
  const double relative =
      static_cast<double>(2 * s.k + 16) * 0x1p-24 + (rounds_to_bf16 ? 0x1p-8 : 0.0);
  std::vector<float> row(static_cast<size_t>(s.k));
  for (int64_t n = 0; n < s.n; ++n) {
    DequantizeRow(p.matrix, n, row.data());
    // With a minimum per group, code * scale and min cancel in the weight: take them apart.
    if (canonical.form == WeightForm::kInt4Group32Min) {
      for (float& w : row) w = std::fabs(w) + 2.0f;
    }
    for (int64_t i = 0; i < s.m; ++i) {
      const size_t at = static_cast<size_t>(i * y_stride + n);
      double magnitude = SumOfMagnitudes(x.data() + i * x_stride, row.data(), s.k);
      if (!IsFloat(canonical.form)) magnitude *= 2;  // |code * scale| <= |x| + amax / 254
      if (with_bias) magnitude += std::fabs(bias[static_cast<size_t>(n)]);
      if (accumulate) magnitude += 3.0;
      // What the subnormal grid may lose, 2^-126 a product; and vpdpbf16ps takes subnormal
      // activations as zero.
      double slack = relative * magnitude + static_cast<double>(s.k) * 0x1p-126;
      if (rounds_to_bf16) {
        for (const float w : row) slack += std::fabs(static_cast<double>(w)) * 0x1p-126;
      }
      ASSERT_NEAR(got[at], want[at], slack) << "row " << i << " column " << n;
    }
  }
  for (int64_t i = 0; i < s.m * y_stride; ++i) {  // nothing is written between the rows
    if (i % y_stride >= s.n) {
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i)])) << i;
    }
  }
}

TEST(Gemm, MatchesReferenceOnOddShapes) {
  std::mt19937_64 rng(21);
  constexpr int64_t kM[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 33, 65, 100};
  constexpr int64_t kN[] = {1, 15, 16, 17, 31, 32, 33, 48, 100, 200};
  constexpr int64_t kK[] = {16, 32, 48, 64, 96, 144, 160, 288, 528};
  for (const Candidate& impl : Candidates()) {
    for (const WeightForm form : kForms) {
      // Every m, n and k with changing partners.
      const size_t count = impl.slow ? 14 : 42;
      for (size_t i = 0; i < count; ++i) {
        Shape s{kM[i % std::size(kM)], kN[(i * 3 + 1) % std::size(kN)],
                kK[(i * 5 + 2) % std::size(kK)]};
        if (IsGrouped(form)) s.k = (s.k + 31) / 32 * 32;
        const Canonical m = MakeCanonical(form, s.n, s.k, Fill::kRandom, rng);
        CheckAgainstReference(impl, m, s, 1.0f, i % 2 == 1, i % 3 == 1, rng);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Gemm, MatchesReferenceOnSpecialValues) {
  std::mt19937_64 rng(22);
  for (const Candidate& impl : Candidates()) {
    for (const WeightForm form : kForms) {
      for (const Fill fill : {Fill::kExtreme, Fill::kZero, Fill::kLarge, Fill::kTiny}) {
        for (const float x_magnitude : {1.0f, 0.0f, 1e-38f, 1e15f}) {
          for (const int64_t m : {1, 3, 8}) {
            const Shape s{m, 33, 160};
            const Canonical w = MakeCanonical(form, s.n, s.k, fill, rng);
            CheckAgainstReference(impl, w, s, x_magnitude, false, false, rng);
            if (testing::Test::HasFatalFailure()) {
              ADD_FAILURE() << "fill " << static_cast<int>(fill) << " magnitude " << x_magnitude;
              return;
            }
          }
        }
      }
    }
  }
}

// All activations at +-127 steps and all weights extreme: the largest sums that can occur, in both
// signs, exactly: with x = +-127 and unit scales every product is an integer.
TEST(Gemm, ExtremeIntegerSumsAreExact) {
  for (const Candidate& impl : Candidates()) {
    for (const WeightForm form : kForms) {
      if (IsFloat(form)) continue;
      const int64_t n = 34, k = 4096;
      for (const int pattern : {0, 1, 2}) {
        Canonical w{form, n, k, {}, {}, {}};
        const auto negative = [&](int64_t i) { return pattern == 1 || (pattern == 2 && i % 2); };
        if (IsInt4(form)) {
          for (int64_t i = 0; i < n * k / 2; ++i) {
            w.values.push_back(pattern == 0 ? 0xff : pattern == 1 ? 0x00 : 0x0f);
          }
        } else {
          for (int64_t i = 0; i < n * k; ++i) {
            w.values.push_back(static_cast<uint8_t>(negative(i) ? -127 : 127));
          }
        }
        const uint16_t one = F32ToF16(1.0f), minus_two = F32ToF16(-2.0f);
        const float one_f32 = 1.0f;
        const auto* f = reinterpret_cast<const uint8_t*>(&one_f32);
        const auto* h = reinterpret_cast<const uint8_t*>(&one);
        const auto* h2 = reinterpret_cast<const uint8_t*>(&minus_two);
        if (form == WeightForm::kInt8Channel) {
          for (int64_t i = 0; i < n; ++i) w.scales.insert(w.scales.end(), f, f + 4);
        } else {
          for (int64_t i = 0; i < n * k / 32; ++i) {
            w.scales.insert(w.scales.end(), h, h + 2);
            if (form == WeightForm::kInt4Group32Min) w.mins.insert(w.mins.end(), h2, h2 + 2);
          }
        }
        const Packed p = PackAll(w, impl.pack);
        for (const int64_t m : {2, 7}) {
          std::vector<float> x(static_cast<size_t>(m * k)), y(static_cast<size_t>(m * n));
          for (int64_t i = 0; i < m * k; ++i) {
            x[static_cast<size_t>(i)] = i / k % 2 == 1 && i % 2 == 1 ? -127.0f : 127.0f;
          }
          const GemmArgs args{x.data(), k, &p.matrix, nullptr, y.data(), n, m, false};
          Runner runner(2);
          ASSERT_TRUE(runner.Run(impl.run, args, m).ok());
          for (int64_t i = 0; i < m * n; ++i) {
            double want = 0.0;
            for (int64_t j = 0; j < k; ++j) {
              want += static_cast<double>(x[static_cast<size_t>(i / n * k + j)]) *
                      CanonicalWeight(w, i % n, j);
            }
            ASSERT_EQ(y[static_cast<size_t>(i)], static_cast<float>(want))
                << impl.name << " " << WeightFormName(form) << " pattern " << pattern << " m " << m;
          }
        }
      }
    }
  }
}

// The rule: each row bit for bit the same at every M, place in the batch and number of threads.
TEST(Gemm, RowsDoNotDependOnTheBatch) {
  std::mt19937_64 rng(23);
  constexpr int64_t kBatch = 130;
  for (const Candidate& impl : Candidates()) {
    for (const WeightForm form : kForms) {
      const int64_t n = impl.slow ? 40 : 100, k = impl.slow ? 288 : 800;
      const Canonical m = MakeCanonical(form, n, k, Fill::kRandom, rng);
      const Packed p = PackAll(m, impl.pack);
      const std::vector<float> x = RandomRows(kBatch, k, k, 1.0f, rng);
      const std::vector<float> bias = RandomRows(1, n, n, 1.0f, rng);
      const std::vector<float> residual = RandomRows(kBatch, n, n, 1.0f, rng);
      std::vector<float> full = residual;
      GemmArgs args{x.data(), k, &p.matrix, bias.data(), full.data(), n, kBatch, true};
      Runner runner(1);
      ASSERT_TRUE(runner.Run(impl.run, args, kBatch).ok());
      for (const int threads : {1, 2, 3, 4}) {
        Runner other(threads);
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 16, 64, 65, 130}) {
          for (int64_t begin = 0; begin + rows <= kBatch; begin += rows > 60 ? 65 : 43) {
            std::vector<float> part(residual.begin() + begin * n,
                                    residual.begin() + (begin + rows) * n);
            args.x = x.data() + begin * k;
            args.y = part.data();
            args.m = rows;
            ASSERT_TRUE(other.Run(impl.run, args, rows).ok());
            ASSERT_EQ(std::memcmp(part.data(), full.data() + begin * n, part.size() * 4), 0)
                << impl.name << " " << WeightFormName(form) << " rows " << rows << " from " << begin
                << " threads " << threads;
          }
        }
      }
    }
  }
}

// Bias and residual come on top of the finished chain: y = before + (chain + bias).
TEST(Gemm, EpilogueIsOneSumAfterTheChain) {
  std::mt19937_64 rng(24);
  for (const Candidate& impl : Candidates()) {
    for (const WeightForm form : kForms) {
      for (const int64_t m : {1, 9}) {
        const int64_t n = 49, k = 320;
        const Packed p = PackAll(MakeCanonical(form, n, k, Fill::kRandom, rng), impl.pack);
        const std::vector<float> x = RandomRows(m, k, k, 1.0f, rng);
        const std::vector<float> bias = RandomRows(1, n, n, 1.0f, rng);
        const std::vector<float> before = RandomRows(m, n, n, 1.0f, rng);
        std::vector<float> chain(static_cast<size_t>(m * n), NAN), both = before;
        Runner runner(1);
        GemmArgs args{x.data(), k, &p.matrix, nullptr, chain.data(), n, m, false};
        ASSERT_TRUE(runner.Run(impl.run, args, m).ok());
        args.y = both.data();
        args.bias = bias.data();
        args.accumulate = true;
        ASSERT_TRUE(runner.Run(impl.run, args, m).ok());
        for (size_t i = 0; i < both.size(); ++i) {
          ASSERT_EQ(both[i], before[i] + (chain[i] + bias[i % static_cast<size_t>(n)]));
        }
      }
    }
  }
}

TEST(Gemm, NanAndInfinityShowInTheirRowOnly) {
  std::mt19937_64 rng(25);
  for (const Candidate& impl : Candidates()) {
    for (const WeightForm form : kForms) {
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        for (const int64_t m : {3, 8}) {
          const int64_t n = 20, k = 64;
          const Packed p = PackAll(MakeCanonical(form, n, k, Fill::kRandom, rng), impl.pack);
          std::vector<float> x = RandomRows(m, k, k, 1.0f, rng);
          x[static_cast<size_t>(k + 37)] = bad;
          std::vector<float> y(static_cast<size_t>(m * n), 0.0f);
          Runner runner(2);
          const GemmArgs args{x.data(), k, &p.matrix, nullptr, y.data(), n, m, false};
          ASSERT_TRUE(runner.Run(impl.run, args, m).ok());
          for (int64_t i = 0; i < m * n; ++i) {
            ASSERT_EQ(std::isfinite(y[static_cast<size_t>(i)]), i / n != 1)
                << impl.name << " " << WeightFormName(form) << " row " << i / n << " value " << bad;
          }
        }
      }
    }
  }
}

TEST(Gemm, NoRowsDoNothing) {
  std::mt19937_64 rng(26);
  for (const Candidate& impl : Candidates()) {
    const Packed p =
        PackAll(MakeCanonical(WeightForm::kBf16, 16, 32, Fill::kRandom, rng), impl.pack);
    Runner runner(2);
    const GemmArgs args{nullptr, 0, &p.matrix, nullptr, nullptr, 0, 0, false};
    EXPECT_TRUE(runner.Run(impl.run, args, 0).ok());
  }
}

// Scratch for max_m rows serves every smaller call, and is not far from what a call takes.
TEST(Gemm, ScratchGrowsWithRows) {
  for (const WeightForm form : kForms) {
    int64_t last = 0;
    for (int64_t m = 0; m < 300; m += 7) {
      const int64_t bytes = GemmScratchBytes(form, Isa::kAvx2, m, 4096, 1024, 2);
      EXPECT_GE(bytes, last);
      EXPECT_LE(bytes, m * (1024 * 4 + 256 + 256) + 2 * (100 << 10) + 1024);
      last = bytes;
    }
  }
}

TEST(Gemm, RefusesWrongArguments) {
  std::mt19937_64 rng(27);
  const Packed p =
      PackAll(MakeCanonical(WeightForm::kBf16, 16, 32, Fill::kRandom, rng), Isa::kAvx512);
  std::vector<float> x(64), y(32);
  const GemmArgs good{x.data(), 32, &p.matrix, nullptr, y.data(), 16, 2, false};
  EXPECT_TRUE(ValidateGemm(good).ok());
  const auto refused = [](const GemmArgs& args, const char* field) {
    const absl::Status status = ValidateGemm(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find(field), std::string::npos) << status;
  };
  GemmArgs args = good;
  args.x = nullptr;
  refused(args, "x is null");
  args = good;
  args.y = nullptr;
  refused(args, "y is null");
  args = good;
  args.w = nullptr;
  refused(args, "w is null");
  args = good;
  args.m = -1;
  refused(args, "m is -1");
  args = good;
  args.x_stride = 31;
  refused(args, "x_stride is 31");
  args = good;
  args.y_stride = 15;
  refused(args, "y_stride is 15");

  Runner runner(1);  // AVX-512 panels given to the portable kernels
  const absl::Status status = runner.Run(GemmImpls()[1].run, good, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("avx512"), std::string::npos) << status;
}

}  // namespace
}  // namespace quire::gemm_test
