#include "kernels/sample/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/sample/logits_simd.h"

namespace quire {
namespace {

int64_t Argmax(const float* x, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isnan(x[i]) && (best < 0 || x[i] > x[best])) best = i;
  }
  return best;
}

bool AllFinite(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

int64_t ArgmaxFinite(const float* x, int64_t n) { return AllFinite(x, n) ? Argmax(x, n) : -1; }

double LogSumExp(const float* x, int64_t n) {
  const int64_t top = Argmax(x, n);
  if (top < 0) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - x[top]);
  return x[top] + std::log(sum);
}

void ExpWeights(float* x, int64_t n, float max, float inverse_temperature, double* block_sums) {
  for (int64_t i = 0; i < n; ++i) {
    if (i % kLogitsBlock == 0) block_sums[i / kLogitsBlock] = 0;
    const double weight = std::exp((static_cast<double>(x[i]) - max) * inverse_temperature);
    x[i] = static_cast<float>(weight);
    block_sums[i / kLogitsBlock] += weight;
  }
}

int64_t TopK(const float* x, int64_t n, int64_t k, int32_t* indices, float* values) {
  std::vector<int32_t> order;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isnan(x[i])) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  const int64_t count = std::min<int64_t>(k, static_cast<int64_t>(order.size()));
  for (int64_t i = 0; i < count; ++i) {
    indices[i] = order[i];
    values[i] = x[order[i]];
  }
  return count;
}

constexpr LogitsKernels kReference = {Isa::kPortable, Argmax,     ArgmaxFinite, AllFinite,
                                      LogSumExp,      ExpWeights, TopK};

}  // namespace

const LogitsKernels& GetLogitsKernels(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return portable::kLogitsKernels;
    case Isa::kAvx2:
      return avx2::kLogitsKernels;
    case Isa::kAvx512:
      return avx512::kLogitsKernels;
  }
  return portable::kLogitsKernels;
}

const LogitsKernels& ReferenceLogitsKernels() { return kReference; }

}  // namespace quire
