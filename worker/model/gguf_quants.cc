#include "worker/model/gguf_quants.h"

#include <cstring>

#include "common/fp.h"
#include "common/status_macros.h"

namespace quire {
namespace {

float LoadF16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return F16ToF32(bits);
}

uint32_t LoadU32(const uint8_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, 4);
  return bits;
}

void Q8_0(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void Q4_0(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

void Q4_1(const uint8_t* block, float* out) {
  const float d = LoadF16(block), m = LoadF16(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block[4 + i] >> 4) + m;
  }
}

void Q5_0(const uint8_t* block, float* out) {
  const float d = LoadF16(block);
  const uint32_t high = LoadU32(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int low = (block[6 + i] & 15) | ((high >> i & 1) << 4);
    const int up = (block[6 + i] >> 4) | ((high >> (i + 16) & 1) << 4);
    out[i] = d * static_cast<float>(low - 16);
    out[i + 16] = d * static_cast<float>(up - 16);
  }
}

void Q5_1(const uint8_t* block, float* out) {
  const float d = LoadF16(block), m = LoadF16(block + 2);
  const uint32_t high = LoadU32(block + 4);
  for (int i = 0; i < 16; ++i) {
    const int low = (block[8 + i] & 15) | ((high >> i & 1) << 4);
    const int up = (block[8 + i] >> 4) | ((high >> (i + 16) & 1) << 4);
    out[i] = d * static_cast<float>(low) + m;
    out[i + 16] = d * static_cast<float>(up) + m;
  }
}

// Sub-blocks 2j and 2j + 1 share 32 bytes: low and high nibbles.
void Q4K(const uint8_t* block, float* out) {
  const float d = LoadF16(block), dmin = LoadF16(block + 2);
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    UnpackScaleMin(block + 4, j, &scale, &min);
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(min);
    const uint8_t* q = block + 16 + (j / 2) * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      out[32 * j + i] = step * static_cast<float>(code) - offset;
    }
  }
}

void Q5K(const uint8_t* block, float* out) {
  const float d = LoadF16(block), dmin = LoadF16(block + 2);
  const uint8_t* high = block + 16;
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    UnpackScaleMin(block + 4, j, &scale, &min);
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(min);
    const uint8_t* q = block + 48 + (j / 2) * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = (j % 2 == 0 ? q[i] & 15 : q[i] >> 4) | ((high[i] >> j & 1) << 4);
      out[32 * j + i] = step * static_cast<float>(code) - offset;
    }
  }
}

// Two halves of 128 elements; in each, quarter k of 32 takes nibbles of bytes (k % 2) * 32 + i and
// bit pair k of high byte i; 16 elements share a scale.
void Q6K(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = LoadF16(block + 208);
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < 32; ++i) {
        const uint8_t byte = low[half * 64 + (k % 2) * 32 + i];
        const int code =
            (k < 2 ? byte & 15 : byte >> 4) | ((high[half * 32 + i] >> (2 * k) & 3) << 4);
        const float step = d * static_cast<float>(scales[half * 8 + k * 2 + i / 16]);
        out[half * 128 + k * 32 + i] = step * static_cast<float>(code - 32);
      }
    }
  }
}

template <int kElements, int kBytes, class Fn>
void EachBlock(const std::byte* bytes, int64_t count, float* out, Fn fn) {
  QUIRE_CHECK(count % kElements == 0);
  const auto* p = reinterpret_cast<const uint8_t*>(bytes);
  for (int64_t i = 0; i < count; i += kElements, p += kBytes) fn(p, out + i);
}

}  // namespace

void UnpackScaleMin(const uint8_t* packed, int index, uint8_t* scale, uint8_t* min) {
  if (index < 4) {
    *scale = packed[index] & 63;
    *min = packed[index + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[index + 4] & 15) | (packed[index - 4] >> 6 << 4));
    *min = static_cast<uint8_t>((packed[index + 4] >> 4) | (packed[index] >> 6 << 4));
  }
}

void DequantizeToF32(TensorType type, const std::byte* bytes, int64_t count, float* out) {
  if (count == 0) return;
  switch (type) {
    case TensorType::kF32:
      std::memcpy(out, bytes, count * sizeof(float));
      return;
    case TensorType::kF16:
      for (int64_t i = 0; i < count; ++i) {
        out[i] = LoadF16(reinterpret_cast<const uint8_t*>(bytes) + 2 * i);
      }
      return;
    case TensorType::kBf16:
      for (int64_t i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, bytes + 2 * i, 2);
        out[i] = Bf16ToF32(bits);
      }
      return;
    case TensorType::kF8E4m3:
      for (int64_t i = 0; i < count; ++i) {
        out[i] = Fp8ToF32<E4m3>(static_cast<uint8_t>(bytes[i]));
      }
      return;
    case TensorType::kQ8_0:
      return EachBlock<32, 34>(bytes, count, out, Q8_0);
    case TensorType::kQ4_0:
      return EachBlock<32, 18>(bytes, count, out, Q4_0);
    case TensorType::kQ4_1:
      return EachBlock<32, 20>(bytes, count, out, Q4_1);
    case TensorType::kQ5_0:
      return EachBlock<32, 22>(bytes, count, out, Q5_0);
    case TensorType::kQ5_1:
      return EachBlock<32, 24>(bytes, count, out, Q5_1);
    case TensorType::kQ4K:
      return EachBlock<256, 144>(bytes, count, out, Q4K);
    case TensorType::kQ5K:
      return EachBlock<256, 176>(bytes, count, out, Q5K);
    case TensorType::kQ6K:
      return EachBlock<256, 210>(bytes, count, out, Q6K);
    case TensorType::kOther:
      break;
  }
  QUIRE_CHECK(false);
}

}  // namespace quire
