// The block formats of GGUF, dequantised by their definition.
//
// A row is a run of blocks; d, m are F16. In brackets: elements and bytes of a block.
//   Q8_0 [32, 34]   d, q[32] s8:                         x = d q
//   Q4_0 [32, 18]   d, nibbles (i low, i + 16 high):     x = d (q - 8)
//   Q4_1 [32, 20]   d, m, nibbles:                       x = d q + m
//   Q5_0 [32, 22]   d, 32 high bits, nibbles:            x = d (q - 16)
//   Q5_1 [32, 24]   d, m, 32 high bits, nibbles:         x = d q + m
//   Q4_K [256, 144] d, dmin, 8 x (6-bit s, 6-bit m), nibbles:         x = (d s) q - dmin m
//   Q5_K [256, 176] the same with a fifth bit
//   Q6_K [256, 210] low nibbles, high bit pairs, 16 x s8 s, d:        x = (d s) (q - 32)
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and the formats' public tables.
#ifndef QUIRE_WORKER_MODEL_GGUF_QUANTS_H_
#define QUIRE_WORKER_MODEL_GGUF_QUANTS_H_

#include <cstddef>
#include <cstdint>

#include "worker/model/tensor_files.h"

namespace quire {

// `count` elements (a multiple of the block) of any type but kOther, from `bytes` (any alignment).
void DequantizeToF32(TensorType type, const std::byte* bytes, int64_t count, float* out);

// The sub-blocks of a Q4_K or Q5_K block: scale and min of sub-block `index` in [0, 8).
// `packed` are the block's 12 bytes.
void UnpackScaleMin(const uint8_t* packed, int index, uint8_t* scale, uint8_t* min);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_GGUF_QUANTS_H_
