// KvLayout: where each K and V element of a page lies (architecture: "page format", kv_layout).
//
// A page holds one block: `block_size` token positions of all layers. Order inside a page: layer,
// KV head, stripe. A stripe is {K tile, V tile, K scales, V scales}:
//
//   K tile: 32-bit words [head_size / g][block_size], word (i, t) = dims i*g .. i*g+g-1 of token t
//   V tile: 32-bit words [head_size / 16][block_size / g][16], word (c, j, l) = tokens
//           j*g .. j*g+g-1 of dim c*16+l
//   scales: FP16 [block_size], one a token (FP8 only)
//
// with g = 4 / element size: 1 for F32, 2 for BF16, 4 for FP8. So tokens lie in vector lanes for K
// and dims for V, and a 16-token block is read in whole 64-byte lines. The scales stand behind both
// tiles (not behind K) so that the V tile keeps the 64-byte alignment.
//
// FP8: code = round(x / scale), scale = amax / max rounded up to FP16, at least 2^-24, 0 for an
// all-zero vector; one scale a token and KV head, for K and V each.
#ifndef QUIRE_KERNELS_KV_LAYOUT_KV_LAYOUT_H_
#define QUIRE_KERNELS_KV_LAYOUT_KV_LAYOUT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quire {

enum class KvDtype { kF32, kBf16, kFp8E4m3, kFp8E5m2 };

const char* KvDtypeName(KvDtype dtype);  // "f32", "bf16", "fp8", "fp8_e5m2": the flag's values

// Errors: INVALID_ARGUMENT naming the value and the known names.
absl::StatusOr<KvDtype> ParseKvDtype(const std::string& name);

inline int KvElementBytes(KvDtype dtype) {
  return dtype == KvDtype::kF32 ? 4 : dtype == KvDtype::kBf16 ? 2 : 1;
}
inline bool KvIsFp8(KvDtype dtype) {
  return dtype == KvDtype::kFp8E4m3 || dtype == KvDtype::kFp8E5m2;
}

struct KvLayout {
  KvDtype dtype = KvDtype::kBf16;
  int32_t block_size = 16;  // tokens: 16 or 32
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;  // a multiple of 16

  int32_t group() const { return 4 / KvElementBytes(dtype); }  // elements in a 32-bit word
  int64_t tile_bytes() const {
    return int64_t{block_size} * head_size * KvElementBytes(dtype);
  }
  int64_t v_offset_bytes() const { return tile_bytes(); }
  int64_t k_scale_offset_bytes() const { return 2 * tile_bytes(); }
  int64_t v_scale_offset_bytes() const { return 2 * tile_bytes() + 2 * block_size; }
  int64_t stripe_bytes() const {
    return 2 * tile_bytes() + (KvIsFp8(dtype) ? 4 * block_size : 0);
  }
  int64_t layer_bytes() const { return stripe_bytes() * num_kv_heads; }
  int64_t page_bytes() const { return layer_bytes() * num_layers; }

  // Byte offset of an element inside its tile. token in [0, block_size), dim in [0, head_size).
  int64_t k_element_offset(int32_t token, int32_t dim) const {
    const int32_t g = group();
    return ((int64_t{dim / g} * block_size + token) * g + dim % g) * KvElementBytes(dtype);
  }
  int64_t v_element_offset(int32_t token, int32_t dim) const {
    const int32_t g = group();
    return (((int64_t{dim / 16} * (block_size / g) + token / g) * 16 + dim % 16) * g + token % g) *
           KvElementBytes(dtype);
  }

  // The name that goes into block keys and handshakes, e.g. "lanes32-bf16-b16-h8x128-l28".
  std::string Name() const;

  // Errors: INVALID_ARGUMENT or UNIMPLEMENTED naming the field, its value and the limit.
  absl::Status Validate() const;
};

// One layer of the pages of a pool. `base` is the first byte of that layer in block 0.
struct KvLayerView {
  std::byte* base = nullptr;
  int64_t block_stride_bytes = 0;  // from a block's layer to the next block's
  std::byte* stripe(int32_t block_id, int32_t kv_head, int64_t stripe_bytes) const {
    return base + block_id * block_stride_bytes + kv_head * stripe_bytes;
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_KV_LAYOUT_KV_LAYOUT_H_
