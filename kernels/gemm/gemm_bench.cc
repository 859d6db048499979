// GEMM at the shapes of Qwen3-0.6B and SmolLM2-135M, beside what this machine can do: every line
// gives GFLOP/s and GB/s of weights, and their share of the peak of the form's instruction and of a
// four-stream read probe, all measured in the same run.
//
// Weights rotate through 256 MiB or more, so that they come from DRAM. Machines are shared, hence
// two clocks: wall time, medians over the iterations in which no thread of this process was
// descheduled (over all if there are fewer than five), `best` the fastest; and (`cpu_`) processor
// time over the number of threads, which a busy neighbour cannot inflate by taking the core away.
//
//   gemm_bench --benchmark_filter='avx2/bf16/qwen3.*'     GEMM_BENCH_THREADS=2
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/memory.h"
#include "common/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_bench_probe.h"

namespace quire {
namespace {

struct Shape {
  const char* name;
  int64_t k, n;
};
constexpr Shape kShapes[] = {
    {"qwen3_qkv", 1024, 4096},   {"qwen3_o", 2048, 1024},       {"qwen3_gate_up", 1024, 6144},
    {"qwen3_down", 3072, 1024},  {"qwen3_head", 1024, 151936},  {"smollm_qkv", 576, 960},
    {"smollm_o", 576, 576},      {"smollm_gate_up", 576, 3072}, {"smollm_down", 1536, 576},
    {"smollm_head", 576, 49152},
};
constexpr int64_t kRows[] = {1, 4, 16, 64, 512};
constexpr WeightForm kForms[] = {
    WeightForm::kF32,         WeightForm::kBf16,        WeightForm::kInt8Channel,
    WeightForm::kInt8Group32, WeightForm::kInt4Group32, WeightForm::kInt4Group32Min,
    WeightForm::kFp8Block128,
};
constexpr int64_t kRotateBytes = int64_t{256} << 20;

int NumThreads() {
  const char* value = std::getenv("GEMM_BENCH_THREADS");
  return value == nullptr ? 2 : std::max(1, std::atoi(value));
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuNow() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int64_t InvoluntarySwitches() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

// Seconds of the clean calls of `call`, or of all if fewer than five were clean.
class Samples {
 public:
  template <class Call>
  double Time(Call call) {
    const int64_t switches = InvoluntarySwitches();
    const double cpu_begin = CpuNow();
    const double begin = Now();
    call();
    const double seconds = Now() - begin;
    cpu_.push_back(CpuNow() - cpu_begin);
    all_.push_back(seconds);
    if (InvoluntarySwitches() == switches) clean_.push_back(seconds);
    return seconds;
  }
  double Median() { return At(clean_.size() < 5 ? all_ : clean_, 0.5); }
  double Best() { return At(clean_.size() < 5 ? all_ : clean_, 0.0); }
  double CpuMedian() { return At(cpu_, 0.5); }
  double CpuBest() { return At(cpu_, 0.0); }
  int64_t num_clean() const { return static_cast<int64_t>(clean_.size()); }

 private:
  static double At(std::vector<double>& from, double share) {
    std::sort(from.begin(), from.end());
    return from[static_cast<size_t>(share * static_cast<double>(from.size() - 1))];
  }
  std::vector<double> all_, clean_, cpu_;
};

// What the machine can do: best of some samples each, by processor time.
struct Machine {
  double fma_gflops = 0, madd16_gops = 0, maddubs_gops = 0, read_gbps = 0;

  double PeakFor(WeightForm form) const {
    switch (form) {
      case WeightForm::kInt8Channel:
      case WeightForm::kInt8Group32:
        return madd16_gops;
      case WeightForm::kInt4Group32:
      case WeightForm::kInt4Group32Min:
        return maddubs_gops;
      default:
        return fma_gflops;
    }
  }
};

// Measured anew by each benchmark: neighbours change it within seconds.
Machine Probe(ThreadPool& pool, std::span<const std::byte> memory) {
  Machine m;
  const auto rate = [&](double amount, int count, auto call) {
    Samples samples;
    for (int i = 0; i < count; ++i) samples.Time(call);
    return amount * pool.num_threads() / samples.CpuBest() / 1e9;
  };
  const double threads = pool.num_threads();
  const auto peak = [&](void (*loop)(int64_t), double ops) {
    return rate(ops * threads * 100000, 12, [&] { pool.Run([&](int) { loop(100000); }); });
  };
  m.fma_gflops = peak(probe::FmaLoop, probe::kFmaOps);
  m.madd16_gops = peak(probe::Madd16Loop, probe::kMadd16Ops);
  m.maddubs_gops = peak(probe::MaddubsLoop, probe::kMaddubsOps);
  const int64_t piece = int64_t{32} << 20;  // a thread
  int64_t at = 0;
  m.read_gbps = rate(static_cast<double>(piece) * threads, 12, [&] {
    pool.Run([&](int thread) {
      const int64_t begin = (at + thread * piece) % static_cast<int64_t>(memory.size() - piece);
      probe::ReadFourStreams(memory.data() + begin / 4096 * 4096, piece);
    });
    at += piece * pool.num_threads();
  });
  return m;
}

void RunGemm(benchmark::State& state, const Impl<GemmArgs>& impl, WeightForm form,
             const Shape& shape, int64_t m) {
  const int threads = NumThreads();
  ThreadPool pool(threads);
  const int64_t bytes = PackedBytes(form, impl.isa, shape.n, shape.k);
  const int64_t copies = std::max<int64_t>(1, kRotateBytes / bytes);
  HugeBuffer weights = HugeBuffer::Allocate(bytes * copies, "bench weights").value();
  std::memset(weights.data(), 0x31, static_cast<size_t>(bytes * copies));  // sane in every form
  HugeBuffer scratch_memory =
      HugeBuffer::Allocate(GemmScratchBytes(form, impl.isa, m, shape.n, shape.k, threads),
                           "bench scratch")
          .value();
  ScratchArena scratch(scratch_memory.bytes());
  ExecContext context{pool, scratch};
  std::vector<float> x(static_cast<size_t>(m * shape.k), 0.5f), y(static_cast<size_t>(m * shape.n));
  PackedMatrix matrix{form, impl.isa, shape.n, shape.k, weights.data()};
  const GemmArgs args{x.data(), shape.k, &matrix, nullptr, y.data(), shape.n, m, false};

  const Machine machine = Probe(pool, weights.bytes());
  Samples samples;
  int64_t copy = 0;
  for (auto _ : state) {
    matrix.data = weights.data() + copy * bytes;
    copy = (copy + 1) % copies;
    scratch.Reset();
    state.SetIterationTime(samples.Time([&] { QUIRE_CHECK(impl.run(args, context).ok()); }));
  }
  const double gflop = 2e-9 * static_cast<double>(m * shape.n * shape.k);
  const double gbytes = static_cast<double>(bytes) * 1e-9;
  state.counters["GFLOPs"] = gflop / samples.Median();
  state.counters["GFLOPs_best"] = gflop / samples.Best();
  state.counters["of_peak"] = gflop / samples.Median() / machine.PeakFor(form);
  state.counters["of_peak_best"] = gflop / samples.Best() / machine.PeakFor(form);
  state.counters["peak"] = machine.PeakFor(form);
  state.counters["GBs"] = gbytes / samples.Median();
  state.counters["GBs_best"] = gbytes / samples.Best();
  state.counters["of_read"] = gbytes / samples.Median() / machine.read_gbps;
  state.counters["read"] = machine.read_gbps;
  const double cpu_median = samples.CpuMedian() / threads;
  state.counters["cpu_GFLOPs"] = gflop / cpu_median;
  state.counters["cpu_of_peak"] = gflop / cpu_median / machine.PeakFor(form);
  state.counters["cpu_of_peak_best"] =
      gflop / (samples.CpuBest() / threads) / machine.PeakFor(form);
  state.counters["cpu_GBs"] = gbytes / cpu_median;
  state.counters["cpu_of_read"] = gbytes / cpu_median / machine.read_gbps;
  state.counters["clean"] = static_cast<double>(samples.num_clean());
}

void RegisterAll() {
  for (const Impl<GemmArgs>& impl : GemmImpls()) {
    if (impl.reference || impl.isa > DetectIsa()) continue;
    for (const WeightForm form : kForms) {
      for (const Shape& shape : kShapes) {
        if (ValidatePackedShape(form, shape.n, shape.k).ok() == false) continue;
        for (const int64_t m : kRows) {
          if (shape.n > 40000 && m > 64) continue;  // the head runs for sampled rows only
          const std::string name = std::string(impl.name) + "/" + WeightFormName(form) + "/" +
                                   shape.name + "/m:" + std::to_string(m);
          benchmark::RegisterBenchmark(name.c_str(), RunGemm, impl, form, shape, m)
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
