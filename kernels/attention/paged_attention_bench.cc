// Decode: time a token of a model of 28 layers (Qwen3-0.6B: 16 query heads, 8 KV heads, head size
// 128), each layer with its own scattered pages. Prefill: GFLOP/s of a chunk (2 products, causal
// part counted exactly).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/memory.h"
#include "kernels/attention/paged_attention.h"

namespace quire {
namespace {

constexpr int kModelLayers = 28;

struct Problem {
  KvLayout layout;
  int32_t num_q_heads, context, rows, layers;
};

// Pages of `layers` layers, each with its own blocks in shuffled order.
class Model {
 public:
  explicit Model(const Problem& p) : p_(p) {
    const int32_t blocks = (p.context + p.layout.block_size - 1) / p.layout.block_size;
    const int64_t bytes = int64_t{blocks} * p.layers * p.layout.layer_bytes();
    absl::StatusOr<HugeBuffer> pages = HugeBuffer::Allocate(bytes, "pages");
    if (!pages.ok()) std::abort();
    pages_ = *std::move(pages);
    std::memset(pages_.data(), 0x35, bytes);  // finite in every type
    table_.resize(int64_t{blocks} * p.layers);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
    q_.assign(int64_t{p.rows} * p.num_q_heads * p.layout.head_size, 0.01f);
    out_ = q_;
    kv_bytes_ = int64_t{p.context} * p.layers * p.layout.num_kv_heads *
                (p.layout.stripe_bytes() / p.layout.block_size);
  }
  Model(const Model&) = delete;

  int64_t kv_bytes() const { return kv_bytes_; }

  void Run(const Impl<PagedAttentionArgs>& impl, ExecContext& context) {
    const int32_t q_begin[] = {0, p_.rows};
    const int32_t first_position[] = {p_.context - p_.rows};
    PagedAttentionArgs args;
    args.q = q_.data();
    args.out = out_.data();
    args.q_stride = args.out_stride = int64_t{p_.num_q_heads} * p_.layout.head_size;
    args.kv = {pages_.data(), p_.layout.layer_bytes()};
    args.layout = p_.layout;
    args.num_q_heads = p_.num_q_heads;
    args.scale = 0.0884f;
    args.num_seqs = 1;
    args.q_begin = q_begin;
    args.first_position = first_position;
    args.block_ids = table_.data();
    for (int32_t layer = 0; layer < p_.layers; ++layer) {
      const int64_t begin = static_cast<int64_t>(table_.size()) / p_.layers * layer;
      args.table_begin = &begin;
      context.scratch.Reset();
      if (!impl.run(args, context).ok()) std::abort();
    }
  }

 private:
  Problem p_;
  HugeBuffer pages_;
  std::vector<int32_t> table_;
  std::vector<float> q_, out_;
  int64_t kv_bytes_;
};

void Measure(benchmark::State& state, const Impl<PagedAttentionArgs>& impl, const Problem& p,
             int num_threads, bool decode) {
  Model model(p);
  ThreadPool pool(num_threads);
  const int64_t bytes =
      PagedAttentionScratchBytes(p.layout, p.num_q_heads, p.rows, p.context, num_threads);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  ScratchArena scratch({memory, static_cast<size_t>(bytes)});
  ExecContext context{pool, scratch};
  for (auto _ : state) model.Run(impl, context);
  std::free(memory);
  const double iterations = static_cast<double>(state.iterations());
  const double layers = p.layers;
  using Counter = benchmark::Counter;
  if (decode) {
    state.counters["ms_per_token"] =
        Counter(iterations * layers / kModelLayers / 1e3, Counter::kIsRate | Counter::kInvert);
    state.counters["KV_GB/s"] = Counter(iterations * model.kv_bytes() / 1e9, Counter::kIsRate);
    state.counters["M_token_heads/s"] =
        Counter(iterations * layers * p.context * p.num_q_heads / 1e6, Counter::kIsRate);
  } else {
    const double pairs = p.rows * (p.context - (p.rows - 1) / 2.0);
    state.counters["GFLOP/s"] =
        Counter(iterations * layers * pairs * 4 * p.num_q_heads * p.layout.head_size / 1e9,
                Counter::kIsRate);
    state.counters["us_per_row_layer"] =
        Counter(iterations * layers * p.rows / 1e6, Counter::kIsRate | Counter::kInvert);
  }
}

void RegisterAll() {
  for (const Impl<PagedAttentionArgs>& impl : PagedAttentionImpls()) {
    if (impl.reference || impl.isa > DetectIsa()) continue;
    for (KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kFp8E4m3, KvDtype::kFp8E5m2}) {
      const KvLayout layout{dtype, 16, 1, 8, 128};
      for (int num_threads : {1, 2}) {
        for (int32_t context : {128, 1024, 4096, 32768}) {
          const std::string name = std::string("decode/") + impl.name + "/" + KvDtypeName(dtype) +
                                   "/context:" + std::to_string(context) +
                                   "/threads:" + std::to_string(num_threads);
          const Problem p{layout, 16, context, 1, context > 4096 ? 4 : kModelLayers};
          benchmark::RegisterBenchmark(
              name.c_str(),
              [=](benchmark::State& state) { Measure(state, impl, p, num_threads, true); })
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
        }
        for (int32_t rows : {64, 128, 256}) {
          for (int32_t context : {512, 2048}) {
            const std::string name = std::string("prefill/") + impl.name + "/" +
                                     KvDtypeName(dtype) + "/context:" + std::to_string(context) +
                                     "/rows:" + std::to_string(rows) +
                                     "/threads:" + std::to_string(num_threads);
            const Problem p{layout, 16, context, rows, 1};
            benchmark::RegisterBenchmark(
                name.c_str(),
                [=](benchmark::State& state) { Measure(state, impl, p, num_threads, false); })
                ->UseRealTime()
                ->Unit(benchmark::kMillisecond);
          }
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
  benchmark::RunSpecifiedBenchmarks();
}
