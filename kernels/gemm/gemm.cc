#include "kernels/gemm/gemm.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/gemm/gemm_simd.h"
#include "kernels/gemm/panel_layout.h"

namespace quire {
namespace {

// Integer sums of a whole row stay in 32 bits: 255 * 127 * 65536 < 2^31.
constexpr int64_t kMaxK = 65536;

absl::Status RunReference(const GemmArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateGemm(args));
  GemmReference(args);
  return absl::OkStatus();
}

absl::Status RunPortable(const GemmArgs& args, ExecContext& context) {
  static constexpr GemmFamily kFamily = {"portable", false, portable::GemmFloat, portable::GemmInt8,
                                         portable::GemmInt4};
  return RunGemmFamily(kFamily, args, context);
}

#if defined(__x86_64__)
absl::Status RunAvx2(const GemmArgs& args, ExecContext& context) {
  static constexpr GemmFamily kFamily = {"avx2", false, avx2::GemmFloat, avx2::GemmInt8,
                                         avx2::GemmInt4};
  return RunGemmFamily(kFamily, args, context);
}

absl::Status RunAvx512(const GemmArgs& args, ExecContext& context) {
  static constexpr GemmFamily kFamily = {"avx512", true, avx512::GemmFloat, avx512::GemmInt8,
                                         avx512::GemmInt4};
  return RunGemmFamily(kFamily, args, context);
}
#endif

}  // namespace

const char* WeightFormName(WeightForm form) {
  switch (form) {
    case WeightForm::kF32:
      return "f32";
    case WeightForm::kBf16:
      return "bf16";
    case WeightForm::kInt8Channel:
      return "int8";
    case WeightForm::kInt8Group32:
      return "int8_g32";
    case WeightForm::kInt4Group32:
      return "int4_g32";
    case WeightForm::kInt4Group32Min:
      return "int4_g32_min";
    case WeightForm::kFp8Block128:
      return "fp8_b128";
  }
  return "unknown";
}

absl::Status ValidatePackedShape(WeightForm form, int64_t n, int64_t k) {
  if (n <= 0) return absl::InvalidArgumentError(absl::StrCat("n is ", n, ", must be positive"));
  if (k <= 0) return absl::InvalidArgumentError(absl::StrCat("k is ", k, ", must be positive"));
  const bool grouped = form == WeightForm::kInt8Group32 || form == WeightForm::kInt4Group32 ||
                       form == WeightForm::kInt4Group32Min;
  const int64_t multiple = grouped ? kGroup : 16;
  if (k % multiple != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "k is ", k, ", weights of form ", WeightFormName(form), " need a multiple of ", multiple));
  }
  if (k > kMaxK) {
    return absl::UnimplementedError(absl::StrCat("k is ", k, ", the limit is ", kMaxK));
  }
  return absl::OkStatus();
}

int64_t PanelRows(Isa isa) { return isa == Isa::kAvx512 ? 32 : 16; }

int64_t PackedBytes(WeightForm form, Isa isa, int64_t n, int64_t k) {
  return WithPanelLayout(form, isa, [&]<class Layout>(Layout) {
    const int64_t bytes = (n + Layout::kRows - 1) / Layout::kRows * Layout::PanelBytes(k);
    return (bytes + 63) / 64 * 64;
  });
}

absl::Status ValidateGemm(const GemmArgs& args) {
  if (args.w == nullptr) return absl::InvalidArgumentError("w is null");
  RETURN_IF_ERROR(ValidatePackedShape(args.w->form, args.w->n, args.w->k));
  if (args.w->data == nullptr) return absl::InvalidArgumentError("w has no data");
  if (args.m < 0) return absl::InvalidArgumentError(absl::StrCat("m is ", args.m));
  if (args.m == 0) return absl::OkStatus();
  if (args.x == nullptr) return absl::InvalidArgumentError("x is null");
  if (args.y == nullptr) return absl::InvalidArgumentError("y is null");
  if (args.x_stride < args.w->k && args.m > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("x_stride is ", args.x_stride, ", k is ", args.w->k));
  }
  if (args.y_stride < args.w->n && args.m > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("y_stride is ", args.y_stride, ", n is ", args.w->n));
  }
  return absl::OkStatus();
}

int64_t GemmScratchBytes(WeightForm form, Isa isa, int64_t max_m, int64_t /*n*/, int64_t k,
                         int num_threads) {
  // 64 more: ScratchArena aligns what it hands out.
  return 64 + MakeGemmScratchLayout(form, PanelRows(isa), max_m, k, num_threads).total_bytes;
}

absl::Status RunGemmFamily(const GemmFamily& family, const GemmArgs& args, ExecContext& context) {
  RETURN_IF_ERROR(ValidateGemm(args));
  if (family.wide != (args.w->isa == Isa::kAvx512)) {
    return absl::InvalidArgumentError(absl::StrCat("w is packed for ", IsaName(args.w->isa),
                                                   ", which implementation ", family.name,
                                                   " does not read"));
  }
  if (args.m == 0) return absl::OkStatus();
  const int64_t bytes = MakeGemmScratchLayout(args.w->form, PanelRows(args.w->isa), args.m,
                                              args.w->k, context.pool.num_threads())
                            .total_bytes;
  const GemmCall call{args, context.pool, context.scratch.Take<std::byte>(bytes)};
  switch (args.w->form) {
    case WeightForm::kF32:
    case WeightForm::kBf16:
    case WeightForm::kFp8Block128:
      family.run_float(call);
      break;
    case WeightForm::kInt8Channel:
    case WeightForm::kInt8Group32:
      family.run_int8(call);
      break;
    case WeightForm::kInt4Group32:
    case WeightForm::kInt4Group32Min:
      family.run_int4(call);
      break;
  }
  return absl::OkStatus();
}

std::span<const Impl<GemmArgs>> GemmImpls() {
  static constexpr Impl<GemmArgs> kImpls[] = {
    {"reference", Isa::kPortable, true, RunReference},
    {"portable", Isa::kPortable, false, RunPortable},
#if defined(__x86_64__)
    {"avx2", Isa::kAvx2, false, RunAvx2},
    {"avx512", Isa::kAvx512, false, RunAvx512},
#endif
  };
  return kImpls;
}

}  // namespace quire
