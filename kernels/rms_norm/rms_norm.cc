#include "kernels/rms_norm/rms_norm.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/common/parallel_rows.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace quire {
namespace {

template <void (*kRows)(const RmsNormArgs&, int64_t, int64_t)>
absl::Status Run(const RmsNormArgs& args, ExecContext& context) {
  RETURN_IF_ERROR(ValidateRmsNorm(args));
  ParallelRows(context.pool, args.num_tokens, args.hidden,
               [&](int64_t begin, int64_t end) { kRows(args, begin, end); });
  return absl::OkStatus();
}

// The definition, in double but for the result.
absl::Status RunReference(const RmsNormArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateRmsNorm(args));
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* x = args.x + t * args.x_stride;
    float* y = args.y + t * args.y_stride;
    double sum = 0;
    for (int64_t i = 0; i < args.hidden; ++i) sum += static_cast<double>(x[i]) * x[i];
    const double root = std::sqrt(sum / static_cast<double>(args.hidden) + args.eps);
    for (int64_t i = 0; i < args.hidden; ++i) {
      y[i] = static_cast<float>(x[i] * static_cast<double>(args.weight[i]) / root);
    }
  }
  return absl::OkStatus();
}

constexpr Impl<RmsNormArgs> kImpls[] = {
    {"reference", Isa::kPortable, true, RunReference},
    {"portable", Isa::kPortable, false, Run<portable::RmsNormRows>},
    {"avx2", Isa::kAvx2, false, Run<avx2::RmsNormRows>},
    {"avx512", Isa::kAvx512, false, Run<avx512::RmsNormRows>},
};

}  // namespace

absl::Status ValidateRmsNorm(const RmsNormArgs& args) {
  if (args.num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm: num_tokens is ", args.num_tokens, ", must be >= 0"));
  }
  if (args.hidden <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm: hidden is ", args.hidden, ", must be > 0"));
  }
  if (args.x_stride < args.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("rms_norm: x_stride is ", args.x_stride,
                                                   ", must be >= hidden = ", args.hidden));
  }
  if (args.y_stride < args.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("rms_norm: y_stride is ", args.y_stride,
                                                   ", must be >= hidden = ", args.hidden));
  }
  if (!(args.eps > 0) || !std::isfinite(args.eps)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm: eps is ", args.eps, ", must be > 0 and finite"));
  }
  if (args.num_tokens > 0 && (args.x == nullptr || args.y == nullptr || args.weight == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("rms_norm: ",
                                                   args.x == nullptr   ? "x"
                                                   : args.y == nullptr ? "y"
                                                                       : "weight",
                                                   " is null with num_tokens = ", args.num_tokens));
  }
  return absl::OkStatus();
}

std::span<const Impl<RmsNormArgs>> RmsNormImpls() { return kImpls; }

}  // namespace quire
