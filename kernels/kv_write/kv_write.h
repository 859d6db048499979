// Writes the K and V vectors of new tokens into their page slots, quantised for FP8 pages.
//
// The definition of the FP8 form is in kv_layout.h. A NaN or infinity in the input makes the
// implementation return OK and set *non_finite: the engine ends that request (row index of the
// first such token), the slot's content is then unspecified.
#ifndef QUIRE_KERNELS_KV_WRITE_KV_WRITE_H_
#define QUIRE_KERNELS_KV_WRITE_KV_WRITE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/common/impl.h"
#include "kernels/kv_layout/kv_layout.h"

namespace quire {

struct KvWriteArgs {
  const float* k = nullptr;  // [num_tokens, num_kv_heads, head_size], rows k_stride apart
  int64_t k_stride = 0;
  const float* v = nullptr;  // [num_tokens, num_kv_heads, head_size], rows v_stride apart
  int64_t v_stride = 0;
  KvLayerView kv;
  KvLayout layout;
  int64_t num_tokens = 0;  // >= 0; 0 does nothing
  // [num_tokens] slot = block_id * block_size + offset in the block. No slot twice in a call.
  const int64_t* slots = nullptr;
  // [num_tokens] set to 1 where K or V of the token holds a NaN or infinity, else left alone; or
  // null.
  uint8_t* non_finite = nullptr;
};

absl::Status ValidateKvWrite(const KvWriteArgs& args);
std::span<const Impl<KvWriteArgs>> KvWriteImpls();

// Quantises one vector by the rule in kv_layout.h and gives its FP16 scale: the definition.
// `codes` [count].
uint16_t QuantizeFp8Vector(const float* x, int64_t count, KvDtype dtype, uint8_t* codes);

}  // namespace quire

#endif  // QUIRE_KERNELS_KV_WRITE_KV_WRITE_H_
