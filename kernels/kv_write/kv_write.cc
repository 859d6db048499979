#include "kernels/kv_write/kv_write.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/fp.h"

namespace quire {

using KvWriteFn = absl::Status(const KvWriteArgs&, ExecContext&);
KvWriteFn KvWriteReference;
namespace portable {
KvWriteFn KvWrite;
}
namespace avx2 {
KvWriteFn KvWrite;
}
namespace avx512 {
KvWriteFn KvWrite;
}

absl::Status ValidateKvWrite(const KvWriteArgs& args) {
  KvLayout layout = args.layout;
  layout.num_layers = std::max(layout.num_layers, 1);  // not used here
  if (absl::Status status = layout.Validate(); !status.ok()) return status;
  if (args.num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens is ", args.num_tokens, ", must not be negative"));
  }
  if (args.num_tokens == 0) return absl::OkStatus();
  if (args.k == nullptr || args.v == nullptr || args.kv.base == nullptr || args.slots == nullptr) {
    return absl::InvalidArgumentError("one of k, v, kv.base, slots is null");
  }
  const int64_t row = int64_t{layout.num_kv_heads} * layout.head_size;
  if (args.k_stride < row || args.v_stride < row) {
    return absl::InvalidArgumentError(absl::StrCat("k_stride is ", args.k_stride, ", v_stride is ",
                                                   args.v_stride, ", both must be at least ", row));
  }
  if (args.kv.block_stride_bytes < layout.layer_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("kv.block_stride_bytes is ",
                                                   args.kv.block_stride_bytes,
                                                   ", must be at least ", layout.layer_bytes()));
  }
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    if (args.slots[t] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("slots[", t, "] is ", args.slots[t], ", must not be negative"));
    }
  }
  return absl::OkStatus();
}

std::span<const Impl<KvWriteArgs>> KvWriteImpls() {
  static constexpr Impl<KvWriteArgs> kImpls[] = {
      {"reference", Isa::kPortable, true, &KvWriteReference},
      {"portable", Isa::kPortable, false, &portable::KvWrite},
      {"avx2", Isa::kAvx2, false, &avx2::KvWrite},
      {"avx512", Isa::kAvx512, false, &avx512::KvWrite},
  };
  return kImpls;
}

}  // namespace quire
