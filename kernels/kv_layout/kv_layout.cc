#include "kernels/kv_layout/kv_layout.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire {

const char* KvDtypeName(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32:
      return "f32";
    case KvDtype::kBf16:
      return "bf16";
    case KvDtype::kFp8E4m3:
      return "fp8";
    case KvDtype::kFp8E5m2:
      return "fp8_e5m2";
  }
  return "unknown";
}

absl::StatusOr<KvDtype> ParseKvDtype(const std::string& name) {
  for (KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kFp8E4m3, KvDtype::kFp8E5m2}) {
    if (name == KvDtypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kv_cache_dtype is \"", name, "\", known are auto, f32, bf16, fp8, fp8_e5m2"));
}

std::string KvLayout::Name() const {
  return absl::StrCat("lanes32-", KvDtypeName(dtype), "-b", block_size, "-h", num_kv_heads, "x",
                      head_size, "-l", num_layers);
}

absl::Status KvLayout::Validate() const {
  if (block_size != 16 && block_size != 32) {
    return absl::UnimplementedError(
        absl::StrCat("block_size is ", block_size, ", supported are 16 and 32"));
  }
  if (head_size <= 0 || head_size % 16 != 0 || head_size > 512) {
    return absl::UnimplementedError(absl::StrCat(
        "head_size is ", head_size, ", supported are multiples of 16 from 16 to 512"));
  }
  if (num_kv_heads <= 0 || num_layers <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_kv_heads is ", num_kv_heads,
                                                   " and num_layers is ", num_layers,
                                                   ", both must be positive"));
  }
  return absl::OkStatus();
}

}  // namespace quire
