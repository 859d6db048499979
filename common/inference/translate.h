// From what a client asked to what an engine runs: checks, defaults, chat template, tokens. The one
// place for it: router and worker both call this, so both answer alike.
#ifndef QUIRE_COMMON_INFERENCE_TRANSLATE_H_
#define QUIRE_COMMON_INFERENCE_TRANSLATE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/inference/served_model.h"
#include "quire/v1/worker.pb.h"

namespace quire {

// Limits of a request.
inline constexpr int32_t kRequestMaxLogprobs = 20;
inline constexpr int32_t kRequestMaxChoices = 64;
inline constexpr int32_t kRequestMaxStops = 64;
inline constexpr size_t kRequestMaxStopBytes = 1024;
inline constexpr size_t kRequestMaxLogitBias = 4096;
inline constexpr size_t kRequestMaxIdBytes = 256;

// Tokens that a request may have on their way to a client that does not read.
inline constexpr uint32_t kCreditTokens = 2048;

struct RenderedChat {
  std::string text;
  std::vector<int32_t> token_ids;
  int32_t cacheable_tokens = 0;  // length of the prefix that the last `cacheable` message ends
};

// Errors: INVALID_ARGUMENT naming the message's index, field and value; FAILED_PRECONDITION or
// UNIMPLEMENTED if the model has no tokenizer or no known template.
absl::StatusOr<RenderedChat> RenderMessages(
    const ServedModel& model, const google::protobuf::RepeatedPtrField<v1::Message>& messages,
    const std::string& tools_json, const google::protobuf::Struct* template_args,
    bool add_generation_prompt);

struct TranslateContext {
  std::string salt;         // of the tenant
  uint64_t fresh_seed = 0;  // for a request that brings none
};

// Fills everything but id, timeout_us, block_keys and resume_ids.
// Errors: INVALID_ARGUMENT and UNIMPLEMENTED naming field, value and limit.
absl::StatusOr<v1::Submit> TranslateGenerate(const v1::GenerateRequest& request,
                                             const ServedModel& model,
                                             const TranslateContext& context);

// HMAC-SHA256(secret, tenant), 32 bytes; "" if the secret is "".
std::string TenantSalt(std::string_view secret, std::string_view tenant);

// The tenant of everybody as long as no credentials are asked for.
inline constexpr char kDefaultTenant[] = "default";

}  // namespace quire

#endif  // QUIRE_COMMON_INFERENCE_TRANSLATE_H_
