// The plain definition of the product: weights as DequantizeRow gives them, activations as the
// form rounds them, sums in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/gemm/gemm_simd.h"
#include "kernels/gemm/panel_layout.h"

namespace quire {
namespace {

// s8 codes with one F32 scale for `count` elements: scale = amax / 127, round to nearest even. An
// infinity or a NaN makes the whole run NaN.
void RoundToInt8(const float* x, int64_t count, double* out) {
  float amax = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    amax = std::max(amax, std::fabs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const float scale = amax / 127.0f;
  for (int64_t i = 0; i < count; ++i) {
    if (!finite) {
      out[i] = NAN;
    } else if (scale == 0.0f) {
      out[i] = 0.0;
    } else {
      const float code = std::clamp(std::nearbyint(x[i] / scale), -127.0f, 127.0f);
      out[i] = static_cast<double>(code) * static_cast<double>(scale);
    }
  }
}

void RoundActivations(WeightForm form, const float* x, int64_t k, double* out) {
  switch (form) {
    case WeightForm::kF32:
    case WeightForm::kBf16:
    case WeightForm::kFp8Block128:
      std::copy(x, x + k, out);
      return;
    case WeightForm::kInt8Channel:
      RoundToInt8(x, k, out);
      return;
    default:
      for (int64_t begin = 0; begin < k; begin += kGroup) {
        RoundToInt8(x + begin, kGroup, out + begin);
      }
  }
}

}  // namespace

// Allocates, unlike the others: it is never chosen at run time.
void GemmReference(const GemmArgs& args) {
  const PackedMatrix& w = *args.w;
  std::vector<double> x(static_cast<size_t>(args.m * w.k));
  for (int64_t i = 0; i < args.m; ++i) {
    RoundActivations(w.form, args.x + i * args.x_stride, w.k, x.data() + i * w.k);
  }
  std::vector<float> row(static_cast<size_t>(w.k));
  for (int64_t n = 0; n < w.n; ++n) {
    DequantizeRow(w, n, row.data());
    for (int64_t i = 0; i < args.m; ++i) {
      double sum = 0.0;
      for (int64_t k = 0; k < w.k; ++k) sum += x[i * w.k + k] * static_cast<double>(row[k]);
      if (args.bias != nullptr) sum += static_cast<double>(args.bias[n]);
      float& y = args.y[i * args.y_stride + n];
      y = static_cast<float>(args.accumulate ? static_cast<double>(y) + sum : sum);
    }
  }
}

}  // namespace quire
