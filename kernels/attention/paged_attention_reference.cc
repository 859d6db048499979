// The definition of paged attention: one softmax over all positions, in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/fp.h"
#include "kernels/attention/paged_attention.h"

namespace quire {
namespace {

double LoadElement(const std::byte* element, KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32: {
      float x;
      std::memcpy(&x, element, sizeof(x));
      return x;
    }
    case KvDtype::kBf16: {
      uint16_t x;
      std::memcpy(&x, element, sizeof(x));
      return Bf16ToF32(x);
    }
    case KvDtype::kFp8E4m3:
      return Fp8ToF32<E4m3>(static_cast<uint8_t>(*element));
    case KvDtype::kFp8E5m2:
      return Fp8ToF32<E5m2>(static_cast<uint8_t>(*element));
  }
  return 0;
}

double LoadScale(const std::byte* scales, int32_t token) {
  uint16_t scale;
  std::memcpy(&scale, scales + 2 * token, sizeof(scale));
  return F16ToF32(scale);
}

// One query head of one row at `position`.
void AttendOne(const PagedAttentionArgs& args, const float* q, int32_t kv_head,
               const int32_t* block_ids, int32_t position, float* out, float* lse) {
  const KvLayout& layout = args.layout;
  const bool fp8 = KvIsFp8(layout.dtype);
  std::vector<double> logits(position + 1);
  double max = -std::numeric_limits<double>::infinity();
  for (int32_t p = 0; p <= position; ++p) {
    const std::byte* stripe =
        args.kv.stripe(block_ids[p / layout.block_size], kv_head, layout.stripe_bytes());
    const int32_t token = p % layout.block_size;
    double dot = 0;
    for (int32_t d = 0; d < layout.head_size; ++d) {
      dot += q[d] * LoadElement(stripe + layout.k_element_offset(token, d), layout.dtype);
    }
    if (fp8) dot *= LoadScale(stripe + layout.k_scale_offset_bytes(), token);
    logits[p] = args.scale * dot;
    max = std::max(max, logits[p]);
  }
  double sum = 0;
  std::vector<double> accumulator(layout.head_size);
  for (int32_t p = 0; p <= position; ++p) {
    const std::byte* stripe =
        args.kv.stripe(block_ids[p / layout.block_size], kv_head, layout.stripe_bytes());
    const int32_t token = p % layout.block_size;
    const double weight = std::exp(logits[p] - max);
    sum += weight;
    const double scaled =
        fp8 ? weight * LoadScale(stripe + layout.v_scale_offset_bytes(), token) : weight;
    for (int32_t d = 0; d < layout.head_size; ++d) {
      accumulator[d] +=
          scaled * LoadElement(stripe + layout.v_offset_bytes() + layout.v_element_offset(token, d),
                               layout.dtype);
    }
  }
  for (int32_t d = 0; d < layout.head_size; ++d) out[d] = static_cast<float>(accumulator[d] / sum);
  if (lse != nullptr) *lse = static_cast<float>(max + std::log(sum));
}

}  // namespace

absl::Status PagedAttentionReference(const PagedAttentionArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidatePagedAttention(args));
  const int32_t group = args.num_q_heads / args.layout.num_kv_heads;
  for (int32_t s = 0; s < args.num_seqs; ++s) {
    for (int64_t row = args.q_begin[s]; row < args.q_begin[s + 1]; ++row) {
      const int32_t position = args.first_position[s] + static_cast<int32_t>(row - args.q_begin[s]);
      for (int32_t h = 0; h < args.num_q_heads; ++h) {
        const int64_t offset = int64_t{h} * args.layout.head_size;
        AttendOne(args, args.q + row * args.q_stride + offset, h / group,
                  args.block_ids + args.table_begin[s], position,
                  args.out + row * args.out_stride + offset,
                  args.lse == nullptr ? nullptr : args.lse + row * args.num_q_heads + h);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
