#include "kernels/swiglu/swiglu.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/common/parallel_rows.h"
#include "kernels/swiglu/swiglu_rows.h"

namespace quire {
namespace {

template <void (*kRows)(const SwigluArgs&, int64_t, int64_t)>
absl::Status Run(const SwigluArgs& args, ExecContext& context) {
  RETURN_IF_ERROR(ValidateSwiglu(args));
  // exp and a division make an element four times as dear as one of RMSNorm.
  ParallelRows(context.pool, args.num_tokens, 4 * args.inner,
               [&](int64_t begin, int64_t end) { kRows(args, begin, end); });
  return absl::OkStatus();
}

// The definition, in double but for the result.
absl::Status RunReference(const SwigluArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateSwiglu(args));
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* x = args.x + t * args.x_stride;
    for (int64_t i = 0; i < args.inner; ++i) {
      const double gate = x[i], up = x[args.inner + i];
      args.y[t * args.y_stride + i] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
    }
  }
  return absl::OkStatus();
}

constexpr Impl<SwigluArgs> kImpls[] = {
    {"reference", Isa::kPortable, true, RunReference},
    {"portable", Isa::kPortable, false, Run<portable::SwigluRows>},
    {"avx2", Isa::kAvx2, false, Run<avx2::SwigluRows>},
    {"avx512", Isa::kAvx512, false, Run<avx512::SwigluRows>},
};

}  // namespace

absl::Status ValidateSwiglu(const SwigluArgs& args) {
  if (args.num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("swiglu: num_tokens is ", args.num_tokens, ", must be >= 0"));
  }
  if (args.inner <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("swiglu: inner is ", args.inner, ", must be > 0"));
  }
  if (args.x_stride < 2 * args.inner) {
    return absl::InvalidArgumentError(absl::StrCat("swiglu: x_stride is ", args.x_stride,
                                                   ", must be >= 2 * inner = ", 2 * args.inner));
  }
  if (args.y_stride < args.inner) {
    return absl::InvalidArgumentError(
        absl::StrCat("swiglu: y_stride is ", args.y_stride, ", must be >= inner = ", args.inner));
  }
  if (args.num_tokens > 0 && (args.x == nullptr || args.y == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("swiglu: ", args.x == nullptr ? "x" : "y",
                                                   " is null with num_tokens = ", args.num_tokens));
  }
  return absl::OkStatus();
}

std::span<const Impl<SwigluArgs>> SwigluImpls() { return kImpls; }

}  // namespace quire
