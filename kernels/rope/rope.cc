#include "kernels/rope/rope.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/common/parallel_rows.h"
#include "kernels/rope/rope_rows.h"

namespace quire {
namespace {

template <void (*kRows)(const RopeArgs&, int64_t, int64_t)>
absl::Status Run(const RopeArgs& args, ExecContext& context) {
  RETURN_IF_ERROR(ValidateRope(args));
  ParallelRows(context.pool, args.num_tokens, int64_t{args.num_heads} * args.head_size,
               [&](int64_t begin, int64_t end) { kRows(args, begin, end); });
  return absl::OkStatus();
}

// The definition, in double but for the result.
absl::Status RunReference(const RopeArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateRope(args));
  const int64_t size = args.head_size, half = size / 2;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t head = 0; head < args.num_heads; ++head) {
      float* x = args.x + t * args.x_stride + head * size;
      double root = 1;
      if (args.norm_weight != nullptr) {
        double sum = 0;
        for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(x[i]) * x[i];
        root = std::sqrt(sum / static_cast<double>(size) + args.norm_eps);
      }
      for (int64_t i = 0; i < half; ++i) {
        double a = x[i], b = x[i + half];
        if (args.norm_weight != nullptr) {
          a = a * args.norm_weight[i] / root;
          b = b * args.norm_weight[i + half] / root;
        }
        const double c = args.cos[args.positions[t] * half + i];
        const double s = args.sin[args.positions[t] * half + i];
        x[i] = static_cast<float>(a * c - b * s);
        x[i + half] = static_cast<float>(b * c + a * s);
      }
    }
  }
  return absl::OkStatus();
}

constexpr Impl<RopeArgs> kImpls[] = {
    {"reference", Isa::kPortable, true, RunReference},
    {"portable", Isa::kPortable, false, Run<portable::RopeRows>},
    {"avx2", Isa::kAvx2, false, Run<avx2::RopeRows>},
    {"avx512", Isa::kAvx512, false, Run<avx512::RopeRows>},
};

}  // namespace

absl::Status ValidateRope(const RopeArgs& args) {
  if (args.num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope: num_tokens is ", args.num_tokens, ", must be >= 0"));
  }
  if (args.num_heads <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope: num_heads is ", args.num_heads, ", must be > 0"));
  }
  if (args.head_size <= 0 || args.head_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope: head_size is ", args.head_size, ", must be even and > 0"));
  }
  const int64_t row = int64_t{args.num_heads} * args.head_size;
  if (args.x_stride < row) {
    return absl::InvalidArgumentError(absl::StrCat("rope: x_stride is ", args.x_stride,
                                                   ", must be >= num_heads * head_size = ", row));
  }
  if (args.norm_weight != nullptr && (!(args.norm_eps > 0) || !std::isfinite(args.norm_eps))) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope: norm_eps is ", args.norm_eps, ", must be > 0 and finite"));
  }
  if (args.num_tokens == 0) return absl::OkStatus();
  if (args.x == nullptr || args.positions == nullptr || args.cos == nullptr ||
      args.sin == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("rope: ",
                                                   args.x == nullptr           ? "x"
                                                   : args.positions == nullptr ? "positions"
                                                   : args.cos == nullptr       ? "cos"
                                                                               : "sin",
                                                   " is null with num_tokens = ", args.num_tokens));
  }
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    if (args.positions[t] < 0 || args.positions[t] >= args.max_position) {
      return absl::InvalidArgumentError(absl::StrCat("rope: positions[", t, "] is ",
                                                     args.positions[t], ", must be in [0, ",
                                                     args.max_position, ")"));
    }
  }
  return absl::OkStatus();
}

std::span<const Impl<RopeArgs>> RopeImpls() { return kImpls; }

}  // namespace quire
