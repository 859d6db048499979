#include "worker/model/weight_forms.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire {

absl::StatusOr<WeightForm> FormForTensor(const TensorTypeInfo& type,
                                         const std::string& weights_dtype, bool is_embedding) {
  if (type.type == TensorType::kOther) {
    return absl::UnimplementedError(absl::StrCat("type ", type.name, " is not supported"));
  }
  if (weights_dtype == "f32") return WeightForm::kF32;
  if (weights_dtype == "bf16") return WeightForm::kBf16;
  const bool is_auto = weights_dtype == "auto", is_int8 = weights_dtype == "int8";
  if (!is_auto && !is_int8 && weights_dtype != "int4") {
    return absl::InvalidArgumentError(absl::StrCat("weights_dtype is ", Quoted(weights_dtype),
                                                   ", must be auto, f32, bf16, int8 or int4"));
  }
  switch (type.type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBf16:
    case TensorType::kF8E4m3:
      if (is_int8) return WeightForm::kInt8Channel;
      if (!is_auto) return is_embedding ? WeightForm::kInt8Channel : WeightForm::kInt4Group32Min;
      if (type.type == TensorType::kF32) return WeightForm::kF32;
      return type.type == TensorType::kF8E4m3 ? WeightForm::kFp8Block128 : WeightForm::kBf16;
    case TensorType::kQ4_0:
      return is_int8 ? WeightForm::kInt8Group32 : WeightForm::kInt4Group32;
    case TensorType::kQ4_1:
    case TensorType::kQ4K:
      return is_int8 ? WeightForm::kInt8Group32 : WeightForm::kInt4Group32Min;
    case TensorType::kQ8_0:
    case TensorType::kQ5_0:
    case TensorType::kQ5_1:
    case TensorType::kQ5K:
    case TensorType::kQ6K:
      return is_auto || is_int8 || is_embedding ? WeightForm::kInt8Group32
                                                : WeightForm::kInt4Group32Min;
    case TensorType::kOther:
      break;
  }
  return absl::UnimplementedError(absl::StrCat("type ", type.name, " is not supported"));
}

WeightForm CommonForm(WeightForm a, WeightForm b) {
  if (a == b) return a;
  const auto either = [&](WeightForm form) { return a == form || b == form; };
  if (either(WeightForm::kF32)) return WeightForm::kF32;
  if (either(WeightForm::kBf16) || either(WeightForm::kFp8Block128)) return WeightForm::kBf16;
  if (either(WeightForm::kInt8Channel) || either(WeightForm::kInt8Group32)) {
    return WeightForm::kInt8Group32;
  }
  return WeightForm::kInt4Group32Min;
}

bool IsQuantized(TensorType type) {
  return type != TensorType::kF32 && type != TensorType::kF16 && type != TensorType::kBf16 &&
         type != TensorType::kF8E4m3;
}

const char* WeightsName(WeightForm form) {
  switch (form) {
    case WeightForm::kF32:
      return "f32";
    case WeightForm::kBf16:
      return "bf16";
    case WeightForm::kInt8Channel:
    case WeightForm::kInt8Group32:
      return "int8";
    case WeightForm::kInt4Group32:
    case WeightForm::kInt4Group32Min:
      return "int4";
    case WeightForm::kFp8Block128:
      return "fp8";
  }
  return "?";
}

std::string FileTypeName(const TensorTypeInfo& type) {
  if (type.type == TensorType::kF8E4m3) return "fp8";
  std::string name = type.name;
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

std::string MostCommonType(const TensorFiles& files) {
  std::map<std::string, int64_t> bytes;
  for (const auto& [name, t] : files.tensors) bytes[FileTypeName(t.type)] += t.size_bytes();
  return LargestShare(bytes);
}

std::string LargestShare(const std::map<std::string, int64_t>& bytes) {
  const auto largest = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return largest == bytes.end() ? "" : largest->first;
}

}  // namespace quire
