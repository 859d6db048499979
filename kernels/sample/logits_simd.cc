#include "kernels/sample/logits_simd.h"

#include <cmath>
#include <limits>

#include "kernels/common/vec16.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t FirstNumber(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == x[i]) return i;
  }
  return -1;
}

// One pass that remembers in which block the maximum first rose; the index is looked up there at
// the end. x * 0 is 0 or, for what is not finite, NaN.
template <bool kFinite>
int64_t ArgmaxImpl(const float* x, int64_t n) {
  constexpr int64_t kBlock = 2048;
  float best = -kInfinity;
  int64_t best_begin = -1;
  const F32x16 zero = F32x16::Set1(0);
  F32x16 nan_sum = zero;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    const F32x16 floor = F32x16::Set1(best);
    F32x16 acc[4] = {floor, floor, floor, floor};
    int64_t i = begin;
    for (; i + 64 <= end; i += 64) {
      QUIRE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const F32x16 v = F32x16::Load(x + i + j * kLanes16);
        acc[j] = Max(v, acc[j]);
        if constexpr (kFinite) nan_sum = nan_sum + v * zero;
      }
    }
    for (; i < end; i += kLanes16) {
      const int64_t rest = end - i < kLanes16 ? end - i : kLanes16;
      acc[0] = Max(F32x16::LoadPartial(x + i, rest, -kInfinity), acc[0]);
      if constexpr (kFinite) nan_sum = nan_sum + F32x16::LoadPartial(x + i, rest) * zero;
    }
    const F32x16 top = Max(Max(acc[0], acc[1]), Max(acc[2], acc[3]));
    if (AnyGreater(top, floor)) {
      best = top.MaxLane();
      best_begin = begin;
    }
  }
  if constexpr (kFinite) {
    if (!(nan_sum.Sum() == 0)) return -1;
  }
  if (best_begin < 0) return FirstNumber(x, n);  // -infinity and NaN only
  int64_t i = best_begin;
  while (x[i] != best) ++i;
  return i;
}

int64_t Argmax(const float* x, int64_t n) { return ArgmaxImpl<false>(x, n); }
int64_t ArgmaxFinite(const float* x, int64_t n) { return ArgmaxImpl<true>(x, n); }

bool AllFinite(const float* x, int64_t n) {
  const F32x16 zero = F32x16::Set1(0);
  F32x16 acc[4] = {zero, zero, zero, zero};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    QUIRE_UNROLL
    for (int j = 0; j < 4; ++j) acc[j] = acc[j] + F32x16::Load(x + i + j * kLanes16) * zero;
  }
  for (; i < n; i += kLanes16) {
    acc[0] = acc[0] + F32x16::LoadPartial(x + i, n - i < kLanes16 ? n - i : kLanes16) * zero;
  }
  return ((acc[0] + acc[1]) + (acc[2] + acc[3])).Sum() == 0;
}

// The sum of exp((x - max) * factor) over [begin, end), at most a block, which is also stored if
// asked for. Lanes that pad the end add exp(-infinity) = 0.
template <bool kStore>
float BlockOfExp(const float* x, float* out, int64_t n, F32x16 max, F32x16 factor) {
  const F32x16 zero = F32x16::Set1(0);
  F32x16 acc[4] = {zero, zero, zero, zero};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    QUIRE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const F32x16 e = Exp((F32x16::Load(x + i + j * kLanes16) - max) * factor);
      if constexpr (kStore) e.Store(out + i + j * kLanes16);
      acc[j] = acc[j] + e;
    }
  }
  for (int j = 0; i < n; i += kLanes16, ++j) {
    const int64_t rest = n - i < kLanes16 ? n - i : kLanes16;
    const F32x16 e = Exp((F32x16::LoadPartial(x + i, rest, -kInfinity) - max) * factor);
    if constexpr (kStore) e.StorePartial(out + i, rest);
    acc[j] = acc[j] + e;
  }
  return ((acc[0] + acc[1]) + (acc[2] + acc[3])).Sum();
}

double LogSumExp(const float* x, int64_t n) {
  const int64_t top = Argmax(x, n);
  if (top < 0) return std::numeric_limits<double>::quiet_NaN();
  const F32x16 max = F32x16::Set1(x[top]), one = F32x16::Set1(1);
  double sum = 0;
  for (int64_t i = 0; i < n; i += kLogitsBlock) {
    sum += BlockOfExp<false>(x + i, nullptr, n - i < kLogitsBlock ? n - i : kLogitsBlock, max, one);
  }
  return x[top] + std::log(sum);
}

void ExpWeights(float* x, int64_t n, float max, float inverse_temperature, double* block_sums) {
  const F32x16 m = F32x16::Set1(max), factor = F32x16::Set1(inverse_temperature);
  for (int64_t i = 0; i < n; i += kLogitsBlock) {
    block_sums[i / kLogitsBlock] =
        BlockOfExp<true>(x + i, x + i, n - i < kLogitsBlock ? n - i : kLogitsBlock, m, factor);
  }
}

// A heap over the two output arrays with the worst entry at the root.
struct Heap {
  int32_t* indices;
  float* values;
  int64_t size;

  bool Worse(int64_t a, int64_t b) const {
    return values[a] < values[b] || (values[a] == values[b] && indices[a] > indices[b]);
  }
  void Swap(int64_t a, int64_t b) {
    const int32_t index = indices[a];
    const float value = values[a];
    indices[a] = indices[b], values[a] = values[b];
    indices[b] = index, values[b] = value;
  }
  void SiftUp(int64_t i) {
    for (; i > 0 && Worse(i, (i - 1) / 2); i = (i - 1) / 2) Swap(i, (i - 1) / 2);
  }
  void SiftDown() {
    for (int64_t i = 0;;) {
      int64_t child = 2 * i + 1;
      if (child >= size) return;
      if (child + 1 < size && Worse(child + 1, child)) ++child;
      if (!Worse(child, i)) return;
      Swap(i, child);
      i = child;
    }
  }
};

int64_t TopK(const float* x, int64_t n, int64_t k, int32_t* indices, float* values) {
  Heap heap{indices, values, 0};
  if (k > n) k = n;
  if (k <= 0) return 0;
  int64_t i = 0;
  for (; i < n && heap.size < k; ++i) {
    if (x[i] != x[i]) continue;
    indices[heap.size] = static_cast<int32_t>(i);
    values[heap.size] = x[i];
    heap.SiftUp(heap.size++);
  }
  // A later value equal to the worst kept one loses: its index is higher. So > is all it takes.
  const auto offer = [&](int64_t at) {
    if (!(x[at] > values[0])) return;
    indices[0] = static_cast<int32_t>(at);
    values[0] = x[at];
    heap.SiftDown();
  };
  for (; i + 64 <= n; i += 64) {
    const F32x16 floor = F32x16::Set1(values[0]);
    F32x16 top = floor;
    QUIRE_UNROLL
    for (int j = 0; j < 4; ++j) top = Max(F32x16::Load(x + i + j * kLanes16), top);
    if (!AnyGreater(top, floor)) continue;
    for (int64_t j = i; j < i + 64; ++j) offer(j);
  }
  for (; i < n; ++i) offer(i);
  const int64_t count = heap.size;
  while (heap.size > 1) {
    heap.Swap(0, --heap.size);
    heap.SiftDown();
  }
  return count;
}

}  // namespace

extern const LogitsKernels kLogitsKernels;
const LogitsKernels kLogitsKernels = {
#if QUIRE_SIMD_AVX512
    Isa::kAvx512,
#elif QUIRE_SIMD_AVX2
    Isa::kAvx2,
#else
    Isa::kPortable,
#endif
    Argmax,       ArgmaxFinite, AllFinite, LogSumExp, ExpWeights, TopK};

}  // namespace quire::QUIRE_ISA
