#include "kernels/attention/paged_attention.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/attention/paged_attention_internal.h"

namespace quire {

using PagedAttentionFn = absl::Status(const PagedAttentionArgs&, ExecContext&);
PagedAttentionFn PagedAttentionReference;
namespace portable {
PagedAttentionFn PagedAttention;
}
namespace avx2 {
PagedAttentionFn PagedAttention;
}
namespace avx512 {
PagedAttentionFn PagedAttention;
}

absl::Status ValidatePagedAttention(const PagedAttentionArgs& args) {
  KvLayout layout = args.layout;
  layout.num_layers = std::max(layout.num_layers, 1);  // not used here
  RETURN_IF_ERROR(layout.Validate());
  if (args.num_seqs < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_seqs is ", args.num_seqs, ", must not be negative"));
  }
  if (args.num_q_heads <= 0 || args.num_q_heads % layout.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_q_heads is ", args.num_q_heads,
                                                   ", must be a positive multiple of num_kv_heads ",
                                                   layout.num_kv_heads));
  }
  if (args.num_seqs == 0) return absl::OkStatus();
  if (args.q == nullptr || args.out == nullptr || args.kv.base == nullptr ||
      args.q_begin == nullptr || args.first_position == nullptr || args.table_begin == nullptr ||
      args.block_ids == nullptr) {
    return absl::InvalidArgumentError(
        "one of q, out, kv.base, q_begin, first_position, table_begin, block_ids is null");
  }
  const int64_t row = int64_t{args.num_q_heads} * layout.head_size;
  if (args.q_stride < row || args.out_stride < row) {
    return absl::InvalidArgumentError(absl::StrCat("q_stride is ", args.q_stride,
                                                   ", out_stride is ", args.out_stride,
                                                   ", both must be at least ", row));
  }
  if (args.kv.block_stride_bytes < layout.layer_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("kv.block_stride_bytes is ",
                                                   args.kv.block_stride_bytes,
                                                   ", must be at least ", layout.layer_bytes()));
  }
  for (int32_t s = 0; s < args.num_seqs; ++s) {
    if (args.q_begin[s] < 0 || args.q_begin[s + 1] < args.q_begin[s]) {
      return absl::InvalidArgumentError(absl::StrCat("q_begin[", s, "] is ", args.q_begin[s],
                                                     " and the next ", args.q_begin[s + 1],
                                                     ", must ascend from 0"));
    }
    if (args.first_position[s] < 0 || args.table_begin[s] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("first_position[", s, "] is ", args.first_position[s], ", table_begin[", s,
                       "] is ", args.table_begin[s], ", must not be negative"));
    }
  }
  return absl::OkStatus();
}

std::span<const Impl<PagedAttentionArgs>> PagedAttentionImpls() {
  static constexpr Impl<PagedAttentionArgs> kImpls[] = {
      {"reference", Isa::kPortable, true, &PagedAttentionReference},
      {"portable", Isa::kPortable, false, &portable::PagedAttention},
      {"avx2", Isa::kAvx2, false, &avx2::PagedAttention},
      {"avx512", Isa::kAvx512, false, &avx512::PagedAttention},
  };
  return kImpls;
}

}  // namespace quire
