#include "worker/model/row_converter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/fp.h"
#include "common/status_macros.h"
#include "worker/model/gguf_quants.h"

namespace quire {
namespace {

constexpr int kGroup = 32;

template <class T>
const T* AlignedOrNull(const std::byte* bytes) {
  return reinterpret_cast<uintptr_t>(bytes) % alignof(T) == 0 ? reinterpret_cast<const T*>(bytes)
                                                              : nullptr;
}

uint16_t LoadU16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

// The index of the first infinity or NaN, or `count`. Without a branch in the common case.
int64_t FirstNotFinite(const float* x, int64_t count) {
  uint32_t any = 0;
  for (int64_t i = 0; i < count; ++i) {
    any |= (std::bit_cast<uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  if (any == 0) return count;
  return std::find_if(x, x + count, [](float value) { return !std::isfinite(value); }) - x;
}

std::array<float, 256> Fp8Table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) table[code] = Fp8ToF32<E4m3>(static_cast<uint8_t>(code));
  return table;
}

// One group of 32: signed codes and F16 scale.
void GroupToInt8(TensorType type, const uint8_t* block, int8_t* values, uint16_t* scale) {
  *scale = LoadU16(block);
  if (type == TensorType::kQ8_0) {
    std::memcpy(values, block + 2, kGroup);
  } else if (type == TensorType::kQ4_0) {
    for (int i = 0; i < 16; ++i) {
      values[i] = static_cast<int8_t>((block[2 + i] & 15) - 8);
      values[i + 16] = static_cast<int8_t>((block[2 + i] >> 4) - 8);
    }
  } else {  // Q5_0
    uint32_t high;
    std::memcpy(&high, block + 2, 4);
    for (int i = 0; i < 16; ++i) {
      const uint8_t byte = block[6 + i];
      values[i] = static_cast<int8_t>(((byte & 15) | ((high >> i & 1) << 4)) - 16);
      values[i + 16] = static_cast<int8_t>(((byte >> 4) | ((high >> (i + 16) & 1) << 4)) - 16);
    }
  }
}

// 32 codes of 4 bits from "i low, i + 16 high" to "2i low, 2i + 1 high".
void RepackNibbles(const uint8_t* in, uint8_t* out) {
  for (int i = 0; i < 8; ++i) {
    out[i] = static_cast<uint8_t>((in[2 * i] & 15) | (in[2 * i + 1] & 15) << 4);
    out[i + 8] = static_cast<uint8_t>((in[2 * i] >> 4) | (in[2 * i + 1] >> 4) << 4);
  }
}

// One group of 32 of a 32-element block: codes, F16 scale, and F16 min if wanted.
void GroupToInt4(TensorType type, const uint8_t* block, uint8_t* values, uint16_t* scale,
                 uint16_t* min) {
  *scale = LoadU16(block);
  if (type == TensorType::kQ4_1) {
    *min = LoadU16(block + 2);
    RepackNibbles(block + 4, values);
    return;
  }
  RepackNibbles(block + 2, values);
  if (min != nullptr) *min = F32ToF16(-8 * F16ToF32(*scale));  // Q4_0: exact, a power of two
}

// The eight groups of a Q4_K block.
void Q4KToInt4(const uint8_t* block, uint8_t* values, uint16_t* scales, uint16_t* mins) {
  const float d = F16ToF32(LoadU16(block)), dmin = F16ToF32(LoadU16(block + 2));
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    UnpackScaleMin(block + 4, j, &scale, &min);
    scales[j] = F32ToF16(d * static_cast<float>(scale));
    mins[j] = F32ToF16(-(dmin * static_cast<float>(min)));
    const uint8_t* q = block + 16 + (j / 2) * 32;
    const int shift = j % 2 * 4;
    for (int i = 0; i < 16; ++i) {
      values[16 * j + i] =
          static_cast<uint8_t>((q[2 * i] >> shift & 15) | (q[2 * i + 1] >> shift & 15) << 4);
    }
  }
}

}  // namespace

bool ConvertsDirectly(TensorType type, WeightForm form) {
  switch (form) {
    case WeightForm::kInt8Group32:
      return type == TensorType::kQ8_0 || type == TensorType::kQ5_0 || type == TensorType::kQ4_0;
    case WeightForm::kInt4Group32:
      return type == TensorType::kQ4_0;
    case WeightForm::kInt4Group32Min:
      return type == TensorType::kQ4_0 || type == TensorType::kQ4_1 || type == TensorType::kQ4K;
    case WeightForm::kFp8Block128:
      return type == TensorType::kF8E4m3;
    case WeightForm::kF32:
      return type == TensorType::kF32;
    case WeightForm::kBf16:
      return type == TensorType::kBf16;
    case WeightForm::kInt8Channel:
      return false;
  }
  return false;
}

int64_t RowConverter::staging_bytes() const {
  return static_cast<int64_t>(raw_.capacity() + values_.capacity() +
                              floats_.capacity() * sizeof(float) +
                              (scales_.capacity() + mins_.capacity()) * sizeof(uint16_t) +
                              float_scales_.capacity() * sizeof(float));
}

const std::byte* RowConverter::RawRows(const RowSource& source, int64_t row, int64_t count) {
  const TensorTypeInfo& type = source.tensor->type;
  const int64_t row_bytes = source.k() / type.block_elements * type.block_bytes;
  const std::byte* data = source.files->Data(*source.tensor);
  const int64_t head = source.interleaved_head_size;
  if (head == 0) return data + row * row_bytes;
  raw_.resize(count * row_bytes);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t in_head = (row + i) % head;
    const int64_t half = in_head / (head / 2), index = in_head % (head / 2);
    const int64_t from = (row + i) / head * head + 2 * index + half;
    std::memcpy(raw_.data() + i * row_bytes, data + from * row_bytes, row_bytes);
  }
  return raw_.data();
}

const float* RowConverter::FloatRows(const RowSource& source, int64_t row, int64_t count,
                                     const std::byte* raw) {
  const TensorType type = source.tensor->type.type;
  const int64_t k = source.k();
  if (type == TensorType::kF32) {
    if (const float* in_place = AlignedOrNull<float>(raw); in_place != nullptr) return in_place;
  }
  floats_.resize(count * k);
  if (type != TensorType::kF8E4m3) {
    DequantizeToF32(type, raw, count * k, floats_.data());
    return floats_.data();
  }
  static const std::array<float, 256> kFp8 = Fp8Table();
  const int64_t blocks = (k + 127) / 128;
  float_scales_.resize(blocks);
  for (int64_t i = 0; i < count; ++i) {
    const TensorTypeInfo& scale_type = source.scale->type;
    DequantizeToF32(
        scale_type.type,
        source.files->Data(*source.scale) + (row + i) / 128 * blocks * scale_type.block_bytes,
        blocks, float_scales_.data());
    for (int64_t j = 0; j < k; ++j) {
      floats_[i * k + j] =
          kFp8[static_cast<uint8_t>(raw[i * k + j])] * float_scales_[static_cast<size_t>(j / 128)];
    }
  }
  return floats_.data();
}

void RowConverter::ConvertBlocks(const RowSource& source, int64_t count, const std::byte* raw,
                                 WeightForm form) {
  const TensorTypeInfo& type = source.tensor->type;
  const int64_t groups = count * source.k() / kGroup;
  const int64_t group_bytes = type.block_bytes / (type.block_elements / kGroup);
  scales_.resize(groups);
  const auto* blocks = reinterpret_cast<const uint8_t*>(raw);
  if (form == WeightForm::kInt8Group32) {
    values_.resize(groups * kGroup);
    auto* values = reinterpret_cast<int8_t*>(values_.data());
    for (int64_t g = 0; g < groups; ++g) {
      GroupToInt8(type.type, blocks + g * group_bytes, values + g * kGroup, &scales_[g]);
    }
    return;
  }
  values_.resize(groups * kGroup / 2);
  auto* values = reinterpret_cast<uint8_t*>(values_.data());
  const bool has_min = form == WeightForm::kInt4Group32Min;
  if (has_min) mins_.resize(groups);
  if (type.type == TensorType::kQ4K) {
    for (int64_t g = 0; g < groups; g += 8) {
      Q4KToInt4(blocks + g / 8 * type.block_bytes, values + g * kGroup / 2, &scales_[g], &mins_[g]);
    }
    return;
  }
  for (int64_t g = 0; g < groups; ++g) {
    GroupToInt4(type.type, blocks + g * group_bytes, values + g * kGroup / 2, &scales_[g],
                has_min ? &mins_[g] : nullptr);
  }
}

absl::Status RowConverter::Convert(const RowSource& source, int64_t row, int64_t count,
                                   WeightForm form, WeightRows* out) {
  const TensorType type = source.tensor->type.type;
  const int64_t k = source.k();
  const int64_t size = count * k;
  *out = WeightRows{form, count, k, nullptr, nullptr, nullptr};
  const std::byte* raw = RawRows(source, row, count);
  if (form == WeightForm::kF32) {
    out->values = FloatRows(source, row, count, raw);
    return absl::OkStatus();
  }
  if (form == WeightForm::kBf16) {
    if (type == TensorType::kBf16 && AlignedOrNull<uint16_t>(raw) != nullptr) {
      out->values = raw;
      return absl::OkStatus();
    }
    values_.resize(size * sizeof(uint16_t));
    out->values = values_.data();
    if (type == TensorType::kBf16) {
      std::memcpy(values_.data(), raw, values_.size());
      return absl::OkStatus();
    }
    const float* floats = FloatRows(source, row, count, raw);
    auto* halves = reinterpret_cast<uint16_t*>(values_.data());
    for (int64_t i = 0; i < size; ++i) halves[i] = F32ToBf16(floats[i]);
    return absl::OkStatus();
  }
  if (form == WeightForm::kFp8Block128) {
    QUIRE_CHECK(row / 128 == (row + count - 1) / 128);
    const TensorTypeInfo& scale_type = source.scale->type;
    const int64_t blocks = (k + 127) / 128;
    float_scales_.resize(blocks);
    DequantizeToF32(scale_type.type,
                    source.files->Data(*source.scale) + row / 128 * blocks * scale_type.block_bytes,
                    blocks, float_scales_.data());
    out->values = raw;
    out->scales = float_scales_.data();
    return absl::OkStatus();
  }
  if (ConvertsDirectly(type, form)) {
    ConvertBlocks(source, count, raw, form);
    out->values = values_.data();
    out->scales = scales_.data();
    out->mins = form == WeightForm::kInt4Group32Min ? mins_.data() : nullptr;
    return absl::OkStatus();
  }

  const float* floats = FloatRows(source, row, count, raw);
  if (const int64_t i = FirstNotFinite(floats, size); i < size) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.files->Path(*source.tensor), ": tensor ", Quoted(source.tensor->name),
                     ": row ", row + i / k, " holds ", floats[i], " at ", i % k,
                     ", only finite values can be quantised to ", WeightFormName(form)));
  }
  const bool is_int4 = form == WeightForm::kInt4Group32 || form == WeightForm::kInt4Group32Min;
  values_.resize(is_int4 ? size / 2 : size);
  out->values = values_.data();
  if (form == WeightForm::kInt8Channel) {
    float_scales_.resize(count);
    out->scales = float_scales_.data();
    QuantizeRowsInt8Channel(floats, count, k, reinterpret_cast<int8_t*>(values_.data()),
                            float_scales_.data());
    return absl::OkStatus();
  }
  scales_.resize(size / kGroup);
  out->scales = scales_.data();
  if (form == WeightForm::kInt8Group32) {
    QuantizeRowsInt8Group32(floats, count, k, reinterpret_cast<int8_t*>(values_.data()),
                            scales_.data());
  } else if (form == WeightForm::kInt4Group32) {
    QuantizeRowsInt4Group32(floats, count, k, reinterpret_cast<uint8_t*>(values_.data()),
                            scales_.data());
  } else {
    mins_.resize(size / kGroup);
    out->mins = mins_.data();
    QuantizeRowsInt4Group32Min(floats, count, k, reinterpret_cast<uint8_t*>(values_.data()),
                               scales_.data(), mins_.data());
  }
  return absl::OkStatus();
}

}  // namespace quire
