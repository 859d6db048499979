// ServedModel: all that a front (router or worker) must know of a model to turn a client's request
// into token ids: names, limits, tokenizer, chat template, sampling defaults. Immutable, shared.
#ifndef QUIRE_COMMON_INFERENCE_SERVED_MODEL_H_
#define QUIRE_COMMON_INFERENCE_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "quire/v1/worker.pb.h"

namespace quire {

struct ServedModel {
  v1::ModelInfo info;
  std::string numerics;  // with info.digest and info.kv_layout: the root of the block keys
  v1::GenerationDefaults defaults;
  std::vector<int32_t> eos_ids;
  int64_t cache_ttl_us = 0;  // of `cacheable` prefixes that ask for no other

  std::shared_ptr<const Tokenizer> tokenizer;         // null: prompt_ids only
  std::string tokenizer_error;                        // why it is null
  std::shared_ptr<const ChatTemplate> chat_template;  // null: no `messages`
  std::string chat_template_error;                    // why it is null

  // FAILED_PRECONDITION or UNIMPLEMENTED naming the model if it has none.
  absl::Status RequireTokenizer() const;
  absl::Status RequireChatTemplate() const;
};

// Chooses the chat template that the tokenizer names; fills chat_template or its error, and
// info.chat_template.
void ChooseChatTemplate(ServedModel* model);

// What a worker sent. Errors: INVALID_ARGUMENT if its tokenizer cannot be built. A model without
// one is no error.
absl::StatusOr<std::shared_ptr<const ServedModel>> ServedModelFromWorker(
    const v1::GetTokenizerResponse& response);

v1::TokenizerSpec TokenizerSpecToProto(const TokenizerSpec& spec);
TokenizerSpec TokenizerSpecFromProto(const v1::TokenizerSpec& proto);

}  // namespace quire

#endif  // QUIRE_COMMON_INFERENCE_SERVED_MODEL_H_
