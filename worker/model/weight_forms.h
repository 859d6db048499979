// Which form in memory a matrix of a checkpoint takes.
#ifndef QUIRE_WORKER_MODEL_WEIGHT_FORMS_H_
#define QUIRE_WORKER_MODEL_WEIGHT_FORMS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "worker/model/tensor_files.h"

namespace quire {

// What --weights-dtype says about a matrix whose values the file holds in `type`. `is_embedding`
// for the embedding table and the head.
//            F32    F16    BF16   FP8    Q8_0 Q5_0 Q5_1 Q5_K Q6_K  Q4_0      Q4_1 Q4_K
//   auto     f32    bf16   bf16   fp8    int8_g32                  int4_g32  int4_g32_min
//   f32, bf16: that form
//   int8     int8 (per channel)          int8_g32                  int8_g32  int8_g32
//   int4     int4_g32_min (embedding and head: int8)               int4_g32  int4_g32_min
// Errors: UNIMPLEMENTED for kOther, INVALID_ARGUMENT for an unknown weights_dtype.
absl::StatusOr<WeightForm> FormForTensor(const TensorTypeInfo& type,
                                         const std::string& weights_dtype, bool is_embedding);

// The form that can hold rows of both: of one fused matrix.
WeightForm CommonForm(WeightForm a, WeightForm b);

bool IsQuantized(TensorType type);  // GGUF blocks, or a type that is not read

// The family of a form, as ListModels and flags spell it: "f32", "bf16", "int8", "int4", "fp8".
const char* WeightsName(WeightForm form);

// A type in small letters: "bf16", "q4_k"; "fp8" for e4m3.
std::string FileTypeName(const TensorTypeInfo& type);

// The type that holds most bytes of the files.
std::string MostCommonType(const TensorFiles& files);

// The name with the most bytes, "" of none.
std::string LargestShare(const std::map<std::string, int64_t>& bytes);

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_WEIGHT_FORMS_H_
