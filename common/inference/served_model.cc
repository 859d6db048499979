#include "common/inference/served_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace quire {

absl::Status ServedModel::RequireTokenizer() const {
  if (tokenizer != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("model ", info.name(), " has no tokenizer, only prompt_ids can be used",
                   tokenizer_error.empty() ? "" : ": ", tokenizer_error));
}

absl::Status ServedModel::RequireChatTemplate() const {
  RETURN_IF_ERROR(RequireTokenizer());
  if (chat_template != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("model ", info.name(),
                   " cannot render messages, use prompt or prompt_ids: ", chat_template_error));
}

void ChooseChatTemplate(ServedModel* model) {
  if (model->tokenizer == nullptr) return;
  if (model->tokenizer->chat_template().empty()) {
    model->chat_template_error = "it brings no chat template";
    return;
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> chosen =
      ChatTemplate::Create(model->tokenizer->chat_template(), model->info.name());
  if (!chosen.ok()) {
    model->chat_template_error = std::string(chosen.status().message());
    return;
  }
  model->info.set_chat_template((*chosen)->family());
  model->chat_template = *std::move(chosen);
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ServedModelFromWorker(
    const v1::GetTokenizerResponse& response) {
  auto model = std::make_shared<ServedModel>();
  model->info = response.model();
  model->numerics = response.numerics();
  model->defaults = response.defaults();
  model->eos_ids.assign(response.eos_ids().begin(), response.eos_ids().end());
  model->cache_ttl_us = response.cache_ttl_us();
  if (!response.tokenizer_json().empty()) {
    ASSIGN_OR_RETURN(
        model->tokenizer,
        Tokenizer::FromHuggingFace(response.tokenizer_json(), response.tokenizer_config_json(),
                                   "tokenizer.json of " + model->info.name()));
  } else if (response.has_spec()) {
    ASSIGN_OR_RETURN(model->tokenizer, Tokenizer::Create(TokenizerSpecFromProto(response.spec())));
  } else {
    model->tokenizer_error = "its worker has none";
  }
  ChooseChatTemplate(model.get());
  return model;
}

v1::TokenizerSpec TokenizerSpecToProto(const TokenizerSpec& spec) {
  v1::TokenizerSpec proto;
  for (const std::string& token : spec.tokens) proto.add_tokens(token);
  for (const auto& [left, right] : spec.merges) {
    proto.add_merges(left);
    proto.add_merges(right);
  }
  for (const TokenizerSpec::AddedToken& token : spec.added_tokens) {
    v1::TokenizerSpec::AddedToken* added = proto.add_added_tokens();
    added->set_id(static_cast<uint32_t>(token.id));
    added->set_content(token.content);
    added->set_special(token.special);
    added->set_lstrip(token.lstrip);
    added->set_rstrip(token.rstrip);
    added->set_single_word(token.single_word);
    added->set_normalized(token.normalized);
  }
  proto.set_pre_tokenizer(static_cast<uint32_t>(spec.pre_tokenizer));
  proto.set_nfc(spec.nfc);
  proto.set_ignore_merges(spec.ignore_merges);
  proto.set_add_bos(spec.add_bos);
  proto.set_add_eos(spec.add_eos);
  if (spec.bos_id) proto.set_bos_id(*spec.bos_id);
  if (spec.eos_id) proto.set_eos_id(*spec.eos_id);
  proto.set_chat_template(spec.chat_template);
  proto.set_origin(spec.origin);
  return proto;
}

TokenizerSpec TokenizerSpecFromProto(const v1::TokenizerSpec& proto) {
  TokenizerSpec spec;
  spec.tokens.assign(proto.tokens().begin(), proto.tokens().end());
  for (int i = 0; i + 1 < proto.merges_size(); i += 2) {
    spec.merges.emplace_back(proto.merges(i), proto.merges(i + 1));
  }
  for (const v1::TokenizerSpec::AddedToken& token : proto.added_tokens()) {
    TokenizerSpec::AddedToken added{};
    added.id = static_cast<TokenId>(token.id());
    added.content = token.content();
    added.special = token.special();
    added.lstrip = token.lstrip();
    added.rstrip = token.rstrip();
    added.single_word = token.single_word();
    added.normalized = token.normalized();
    spec.added_tokens.push_back(std::move(added));
  }
  spec.pre_tokenizer = static_cast<PreTokenizer>(proto.pre_tokenizer());
  spec.nfc = proto.nfc();
  spec.ignore_merges = proto.ignore_merges();
  spec.add_bos = proto.add_bos();
  spec.add_eos = proto.add_eos();
  if (proto.has_bos_id()) spec.bos_id = proto.bos_id();
  if (proto.has_eos_id()) spec.eos_id = proto.eos_id();
  spec.chat_template = proto.chat_template();
  spec.origin = proto.origin();
  return spec;
}

}  // namespace quire
