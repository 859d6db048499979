#include "common/inference/translate.h"

#include <google/protobuf/util/json_util.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/inference/wire_check.h"
#include "common/status_macros.h"

namespace quire {
namespace {

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// NaN fails every comparison, so the range test refuses it too.
absl::Status CheckRange(const char* name, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Invalid("sampling.", name, " is ", value, ": must be from ", min, " to ", max);
}

constexpr double kMaxFloat = std::numeric_limits<float>::max();

absl::StatusOr<v1::SamplingParams> FillSampling(const v1::SamplingParams& in,
                                                const ServedModel& model, int64_t prompt_tokens,
                                                const TranslateContext& context) {
  v1::SamplingParams out;
  const v1::GenerationDefaults& defaults = model.defaults;
  const auto float_field = [](bool has, float value, bool has_default, double default_value,
                              float fallback) {
    return has ? value : has_default ? static_cast<float>(default_value) : fallback;
  };
  out.set_temperature(float_field(in.has_temperature(), in.temperature(),
                                  defaults.has_temperature(), defaults.temperature(), 1.0f));
  out.set_top_p(float_field(in.has_top_p(), in.top_p(), defaults.has_top_p(), defaults.top_p(), 1));
  out.set_min_p(float_field(in.has_min_p(), in.min_p(), defaults.has_min_p(), defaults.min_p(), 0));
  out.set_repetition_penalty(float_field(in.has_repetition_penalty(), in.repetition_penalty(),
                                         defaults.has_repetition_penalty(),
                                         defaults.repetition_penalty(), 1));
  out.set_presence_penalty(in.presence_penalty());
  out.set_frequency_penalty(in.frequency_penalty());
  const int64_t top_k = in.has_top_k()         ? in.top_k()
                        : defaults.has_top_k() ? std::max<int64_t>(0, defaults.top_k())
                                               : 0;
  out.set_top_k(static_cast<int32_t>(std::min<int64_t>(top_k, INT32_MAX)));
  RETURN_IF_ERROR(CheckRange("temperature", out.temperature(), 0, kMaxFloat));
  RETURN_IF_ERROR(CheckRange("top_p", out.top_p(), 0, 1));
  RETURN_IF_ERROR(CheckRange("min_p", out.min_p(), 0, 1));
  RETURN_IF_ERROR(CheckRange("top_k", out.top_k(), 0, INT32_MAX));
  if (!(out.repetition_penalty() > 0 && out.repetition_penalty() <= kMaxFloat)) {
    return Invalid("sampling.repetition_penalty is ", out.repetition_penalty(),
                   ": must be above 0 and finite");
  }
  RETURN_IF_ERROR(CheckRange("presence_penalty", out.presence_penalty(), -kMaxFloat, kMaxFloat));
  RETURN_IF_ERROR(CheckRange("frequency_penalty", out.frequency_penalty(), -kMaxFloat, kMaxFloat));

  const uint32_t vocab = model.info.vocab_size();
  if (in.logit_bias().size() > kRequestMaxLogitBias) {
    return Invalid("sampling.logit_bias has ", in.logit_bias().size(), " entries, the limit is ",
                   kRequestMaxLogitBias);
  }
  for (const auto& [id, bias] : in.logit_bias()) {
    if (id >= vocab) {
      return Invalid("sampling.logit_bias names token ", id, ", vocab_size is ", vocab);
    }
    if (!std::isfinite(bias)) {
      return Invalid("sampling.logit_bias of token ", id, " is ", bias, ": must be finite");
    }
    (*out.mutable_logit_bias())[id] = bias;
  }
  out.set_seed(in.has_seed() ? in.seed() : context.fresh_seed);

  if (in.stop_size() > kRequestMaxStops) {
    return Invalid("sampling.stop has ", in.stop_size(), " strings, the limit is ",
                   kRequestMaxStops);
  }
  for (int i = 0; i < in.stop_size(); ++i) {
    if (in.stop(i).empty() || in.stop(i).size() > kRequestMaxStopBytes) {
      return Invalid("sampling.stop[", i, "] has ", in.stop(i).size(), " bytes: must be from 1 to ",
                     kRequestMaxStopBytes);
    }
    if (const auto offset = FindInvalidUtf8(in.stop(i))) {
      return Invalid("sampling.stop[", i, "]: malformed UTF-8 at byte ", *offset);
    }
  }
  *out.mutable_stop() = in.stop();
  if (in.stop_size() > 0) RETURN_IF_ERROR(model.RequireTokenizer());
  if (in.stop_token_ids_size() > kRequestMaxStops) {
    return Invalid("sampling.stop_token_ids has ", in.stop_token_ids_size(), " ids, the limit is ",
                   kRequestMaxStops);
  }
  for (const uint32_t id : in.stop_token_ids()) {
    if (id >= vocab) return Invalid("sampling.stop_token_ids has ", id, ", vocab_size is ", vocab);
  }
  *out.mutable_stop_token_ids() = in.stop_token_ids();
  out.set_ignore_eos(in.ignore_eos());

  if (in.has_logprobs()) {
    RETURN_IF_ERROR(CheckRange("logprobs", in.logprobs(), 0, kRequestMaxLogprobs));
    out.set_logprobs(in.logprobs());
  }
  if (in.has_prompt_logprobs()) {
    RETURN_IF_ERROR(CheckRange("prompt_logprobs", in.prompt_logprobs(), 0, kRequestMaxLogprobs));
    out.set_prompt_logprobs(in.prompt_logprobs());
  }
  out.set_n(in.has_n() ? in.n() : 1);
  RETURN_IF_ERROR(CheckRange("n", out.n(), 1, kRequestMaxChoices));

  const int64_t limit = model.info.max_model_len();
  if (in.has_max_tokens()) {
    RETURN_IF_ERROR(CheckRange("max_tokens", in.max_tokens(), 1, INT32_MAX));
    if (prompt_tokens + in.max_tokens() > limit) {
      return Invalid("prompt has ", prompt_tokens, " tokens and max_tokens is ", in.max_tokens(),
                     ": together ", prompt_tokens + in.max_tokens(), ", max_model_len is ", limit);
    }
  } else if (prompt_tokens >= limit) {
    return Invalid("prompt has ", prompt_tokens, " tokens, max_model_len is ", limit,
                   ": no room for an answer");
  }
  out.set_max_tokens(in.has_max_tokens() ? in.max_tokens()
                                         : static_cast<int32_t>(limit - prompt_tokens));
  out.set_min_tokens(in.min_tokens());
  RETURN_IF_ERROR(CheckRange("min_tokens", out.min_tokens(), 0, out.max_tokens()));
  return out;
}

absl::Status CheckKvPolicy(const v1::KvPolicy& kv) {
  if (kv.topk_kv() < 0) return Invalid("kv.topk_kv is ", kv.topk_kv(), ": must be 0 or more");
  if (!v1::KvPolicy::Prune_IsValid(kv.prune())) {
    return Invalid("kv.prune is ", static_cast<int>(kv.prune()),
                   ": must be NONE, SELECT, EVICT or SPARSIFY");
  }
  if (kv.has_sparsify_p() && !(kv.sparsify_p() >= 0 && kv.sparsify_p() < 1)) {
    return Invalid("kv.sparsify_p is ", kv.sparsify_p(), ": must be from 0 up to, without, 1");
  }
  if (kv.topk_kv() > 0 || kv.prune() != v1::KvPolicy::NONE) {
    return absl::UnimplementedError(
        absl::StrCat("kv: pruning is not in this version (topk_kv ", kv.topk_kv(), ", prune ",
                     v1::KvPolicy::Prune_Name(kv.prune()), "); leave topk_kv 0 and prune NONE"));
  }
  return absl::OkStatus();
}

absl::Status CheckCachePolicy(const v1::CachePolicy& cache) {
  if (cache.ttl_seconds() < 0) {
    return Invalid("cache.ttl_seconds is ", cache.ttl_seconds(), ": must be 0 or more");
  }
  if (!v1::CachePolicy::Semantic_IsValid(cache.semantic())) {
    return Invalid("cache.semantic is ", static_cast<int>(cache.semantic()),
                   ": must be OFF, EXACT or ON");
  }
  if (cache.has_semantic_threshold() &&
      !(cache.semantic_threshold() >= 0 && cache.semantic_threshold() <= 1)) {
    return Invalid("cache.semantic_threshold is ", cache.semantic_threshold(),
                   ": must be from 0 to 1");
  }
  return absl::OkStatus();
}

int32_t CommonPrefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const auto end = std::mismatch(
      a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  return static_cast<int32_t>(end.first - a.begin());
}

constexpr EncodeOptions kEncodeChat{.add_special_tokens = false, .parse_special_tokens = true};

}  // namespace

absl::StatusOr<RenderedChat> RenderMessages(
    const ServedModel& model, const google::protobuf::RepeatedPtrField<v1::Message>& messages,
    const std::string& tools_json, const google::protobuf::Struct* template_args,
    bool add_generation_prompt) {
  RETURN_IF_ERROR(model.RequireChatTemplate());
  if (messages.empty()) return Invalid("messages is empty: at least one is needed");
  ChatRenderOptions options;
  options.tools_json = tools_json;
  options.add_generation_prompt = add_generation_prompt;
  if (template_args != nullptr && template_args->fields_size() > 0) {
    const auto status =
        google::protobuf::util::MessageToJsonString(*template_args, &options.template_args_json);
    if (!status.ok()) return Invalid("template_args: ", std::string(status.message()));
  }
  std::vector<ChatMessage> chat;
  chat.reserve(static_cast<size_t>(messages.size()));
  size_t cacheable_messages = 0;
  for (const v1::Message& message : messages) {
    chat.push_back({message.role(), message.content(), message.name(), message.tool_calls_json(),
                    message.reasoning_content(), message.cacheable()});
    if (message.cacheable()) cacheable_messages = chat.size();
  }
  RenderedChat out;
  ASSIGN_OR_RETURN(out.text, model.chat_template->Render(chat, options));
  out.token_ids = model.tokenizer->Encode(out.text, kEncodeChat);
  if (cacheable_messages > 0) {
    // A template may render a prefix otherwise than the whole (it may even refuse it): what counts
    // is how far the ids agree.
    chat.resize(cacheable_messages);
    options.add_generation_prompt = false;
    const absl::StatusOr<std::string> prefix = model.chat_template->Render(chat, options);
    if (prefix.ok()) {
      out.cacheable_tokens =
          CommonPrefix(out.token_ids, model.tokenizer->Encode(*prefix, kEncodeChat));
    }
  }
  return out;
}

absl::StatusOr<v1::Submit> TranslateGenerate(const v1::GenerateRequest& request,
                                             const ServedModel& model,
                                             const TranslateContext& context) {
  const int given =
      (request.messages_size() > 0) + !request.prompt().empty() + (request.prompt_ids_size() > 0);
  if (given != 1) {
    return Invalid("exactly one of messages, prompt and prompt_ids must be given, ", given,
                   " are not empty");
  }
  if (request.request_id().size() > kRequestMaxIdBytes) {
    return Invalid("request_id has ", request.request_id().size(), " bytes, the limit is ",
                   kRequestMaxIdBytes);
  }
  RETURN_IF_ERROR(CheckCachePolicy(request.cache()));
  RETURN_IF_ERROR(CheckKvPolicy(request.kv()));

  v1::Submit submit;
  submit.set_request_id(request.request_id());
  submit.set_salt(context.salt);
  submit.set_model_digest(model.info.digest());
  if (request.prompt_ids_size() > 0) {
    for (int i = 0; i < request.prompt_ids_size(); ++i) {
      if (request.prompt_ids(i) >= model.info.vocab_size()) {
        return Invalid("prompt_ids[", i, "] is ", request.prompt_ids(i), ", vocab_size is ",
                       model.info.vocab_size());
      }
    }
    *submit.mutable_prompt_ids() = request.prompt_ids();
  } else if (request.messages_size() > 0) {
    ASSIGN_OR_RETURN(const RenderedChat chat,
                     RenderMessages(model, request.messages(), request.tools_json(),
                                    &request.template_args(), true));
    submit.mutable_prompt_ids()->Assign(chat.token_ids.begin(), chat.token_ids.end());
    submit.set_cacheable_tokens(static_cast<uint32_t>(chat.cacheable_tokens));
  } else {
    RETURN_IF_ERROR(model.RequireTokenizer());
    const std::vector<int32_t> ids = model.tokenizer->Encode(
        request.prompt(), {.add_special_tokens = true, .parse_special_tokens = true});
    submit.mutable_prompt_ids()->Assign(ids.begin(), ids.end());
  }
  if (submit.prompt_ids_size() == 0) return Invalid("the prompt has no tokens");
  ASSIGN_OR_RETURN(*submit.mutable_sampling(),
                   FillSampling(request.sampling(), model, submit.prompt_ids_size(), context));
  submit.set_priority(request.priority());
  submit.set_read_prefix_cache(!request.cache().skip_prefix_cache() &&
                               !request.sampling().has_prompt_logprobs());
  submit.set_store_prefix(!request.cache().no_store());
  submit.set_cacheable_ttl_us(request.cache().has_ttl_seconds()
                                  ? int64_t{request.cache().ttl_seconds()} * 1'000'000
                                  : model.cache_ttl_us);
  if (submit.cacheable_ttl_us() == 0) submit.set_cacheable_tokens(0);  // kept for no time at all
  submit.set_credit_tokens(kCreditTokens);
  return submit;
}

std::string TenantSalt(std::string_view secret, std::string_view tenant) {
  if (secret.empty()) return "";
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(tenant.data()), tenant.size(), out, &size);
  return std::string(reinterpret_cast<const char*>(out), size);
}

}  // namespace quire
