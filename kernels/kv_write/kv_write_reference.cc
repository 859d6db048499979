// The definition of a KV write: element by element, on the caller's thread.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/fp.h"
#include "kernels/kv_write/kv_write.h"

namespace quire {
namespace {

template <class Format>
uint16_t Quantize(const float* x, int64_t count, uint8_t* codes) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(x[i]));
  if (amax == 0) {
    std::fill(codes, codes + count, uint8_t{0});
    return 0;
  }
  constexpr float kMaxF16 = 65504.0f;  // a larger scale has no FP16 form: the codes saturate
  const float exact = std::clamp(amax / Format::kMax, 0x1p-24f, kMaxF16);
  const uint16_t scale = F32ToF16RoundUp(exact);
  const float divisor = F16ToF32(scale);
  for (int64_t i = 0; i < count; ++i) codes[i] = F32ToFp8<Format>(x[i] / divisor);
  return scale;
}

// One vector into its tile. `offset(d)` is the byte offset of dim d.
template <class Offset>
void WriteVector(const float* x, const KvLayout& layout, std::byte* tile, std::byte* scale_slot,
                 Offset offset) {
  std::vector<uint8_t> codes(layout.head_size);
  if (KvIsFp8(layout.dtype)) {
    const uint16_t scale = QuantizeFp8Vector(x, layout.head_size, layout.dtype, codes.data());
    std::memcpy(scale_slot, &scale, sizeof(scale));
  }
  for (int32_t d = 0; d < layout.head_size; ++d) {
    std::byte* element = tile + offset(d);
    if (layout.dtype == KvDtype::kF32) {
      std::memcpy(element, &x[d], sizeof(float));
    } else if (layout.dtype == KvDtype::kBf16) {
      const uint16_t bf16 = F32ToBf16(x[d]);
      std::memcpy(element, &bf16, sizeof(bf16));
    } else {
      std::memcpy(element, &codes[d], 1);
    }
  }
}

// Whether a vector can be stored: finite, and finite when rounded to the pages' type.
bool Storable(const float* x, const KvLayout& layout) {
  for (int32_t d = 0; d < layout.head_size; ++d) {
    const float stored = layout.dtype == KvDtype::kBf16 ? Bf16ToF32(F32ToBf16(x[d])) : x[d];
    if (!std::isfinite(stored)) return false;
  }
  return true;
}

}  // namespace

uint16_t QuantizeFp8Vector(const float* x, int64_t count, KvDtype dtype, uint8_t* codes) {
  QUIRE_CHECK(KvIsFp8(dtype));
  return dtype == KvDtype::kFp8E4m3 ? Quantize<E4m3>(x, count, codes)
                                    : Quantize<E5m2>(x, count, codes);
}

absl::Status KvWriteReference(const KvWriteArgs& args, ExecContext&) {
  RETURN_IF_ERROR(ValidateKvWrite(args));
  const KvLayout& layout = args.layout;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const int32_t block = static_cast<int32_t>(args.slots[t] / layout.block_size);
    const int32_t token = static_cast<int32_t>(args.slots[t] % layout.block_size);
    for (int32_t h = 0; h < layout.num_kv_heads; ++h) {
      const float* k = args.k + t * args.k_stride + int64_t{h} * layout.head_size;
      const float* v = args.v + t * args.v_stride + int64_t{h} * layout.head_size;
      if (!Storable(k, layout) || !Storable(v, layout)) {
        if (args.non_finite != nullptr) args.non_finite[t] = 1;
        continue;
      }
      std::byte* stripe = args.kv.stripe(block, h, layout.stripe_bytes());
      WriteVector(k, layout, stripe, stripe + layout.k_scale_offset_bytes() + 2 * token,
                  [&](int32_t d) { return layout.k_element_offset(token, d); });
      WriteVector(v, layout, stripe + layout.v_offset_bytes(),
                  stripe + layout.v_scale_offset_bytes() + 2 * token,
                  [&](int32_t d) { return layout.v_element_offset(token, d); });
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
