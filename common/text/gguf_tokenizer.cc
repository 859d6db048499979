#include "common/text/gguf_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace quire {
namespace {

struct KnownPre {
  const char* name;
  PreTokenizer kind;
  bool nfc;            // the model's tokenizer.json has the normaliser, the format cannot say so
  bool ignore_merges;  // likewise
  bool add_bos;        // when tokenizer.ggml.add_bos_token is absent
};

// Names as llama.cpp writes them.
constexpr KnownPre kKnownPres[] = {
    {"gpt-2", PreTokenizer::kGpt2, false, false, false},
    {"smollm", PreTokenizer::kSmolLm, false, false, false},
    {"qwen2", PreTokenizer::kQwen2, true, false, false},
    {"llama-bpe", PreTokenizer::kLlama3, false, true, true},
    {"llama3", PreTokenizer::kLlama3, false, true, true},
    {"llama-v3", PreTokenizer::kLlama3, false, true, true},
    {"dbrx", PreTokenizer::kCl100k, false, false, false},
};

enum TokenType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

std::string KnownNames() {
  std::string names;
  for (const KnownPre& known : kKnownPres)
    absl::StrAppend(&names, names.empty() ? "" : ", ", known.name);
  return names;
}

absl::StatusOr<std::optional<TokenId>> CheckedId(std::optional<int64_t> id, const char* key,
                                                 const GgufTokenizerFields& fields) {
  if (!id.has_value()) return std::nullopt;
  if (*id < 0 || *id >= static_cast<int64_t>(fields.tokens.size())) {
    return absl::InvalidArgumentError(absl::StrCat(fields.origin, ": ", key, " is ", *id,
                                                   ", tokenizer.ggml.tokens has ",
                                                   fields.tokens.size(), " entries"));
  }
  return static_cast<TokenId>(*id);
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromGgufMetadata(GgufTokenizerFields fields) {
  if (fields.origin.empty()) fields.origin = "GGUF";
  const auto show = [](const std::string& s) { return s.substr(0, 120); };
  if (fields.model != "gpt2") {
    return absl::UnimplementedError(
        absl::StrCat(fields.origin, ": tokenizer.ggml.model is \"", show(fields.model),
                     "\", which is not supported; supported: gpt2 (byte-level BPE)"));
  }
  if (!fields.pre.has_value() || *fields.pre == "default" || fields.pre->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.origin, ": tokenizer.ggml.pre is ",
        fields.pre.has_value() ? absl::StrCat("\"", show(*fields.pre), "\"") : "missing",
        ", so how the model splits text is not known; convert the model with a current tool; known "
        "values: ",
        KnownNames()));
  }
  const auto* known =
      std::find_if(std::begin(kKnownPres), std::end(kKnownPres),
                   [&](const KnownPre& candidate) { return *fields.pre == candidate.name; });
  if (known == std::end(kKnownPres)) {
    return absl::UnimplementedError(
        absl::StrCat(fields.origin, ": tokenizer.ggml.pre is \"", show(*fields.pre),
                     "\", which is not known; known values: ", KnownNames()));
  }
  if (fields.tokens.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.origin, ": tokenizer.ggml.tokens is missing or empty"));
  }
  if (!fields.token_types.empty() && fields.token_types.size() != fields.tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.origin, ": tokenizer.ggml.token_type has ", fields.token_types.size(),
                     " entries, tokenizer.ggml.tokens has ", fields.tokens.size()));
  }

  TokenizerSpec spec;
  spec.origin = fields.origin;
  spec.pre_tokenizer = known->kind;
  spec.nfc = known->nfc;
  spec.ignore_merges = known->ignore_merges;
  spec.chat_template = std::move(fields.chat_template);
  auto bos = CheckedId(fields.bos_id, "tokenizer.ggml.bos_token_id", fields);
  if (!bos.ok()) return bos.status();
  auto eos = CheckedId(fields.eos_id, "tokenizer.ggml.eos_token_id", fields);
  if (!eos.ok()) return eos.status();
  spec.bos_id = *bos;
  spec.eos_id = *eos;
  spec.add_bos = fields.add_bos.value_or(known->add_bos && spec.bos_id.has_value());
  spec.add_eos = fields.add_eos.value_or(false);

  for (size_t i = 0; i < fields.token_types.size(); ++i) {
    const int32_t type = fields.token_types[i];
    if (type < kNormal || type > kByte) {
      return absl::InvalidArgumentError(absl::StrCat(fields.origin, ": tokenizer.ggml.token_type[",
                                                     i, "] is ", type, ", not 1 to 6"));
    }
    if (type == kByte) {
      return absl::UnimplementedError(
          absl::StrCat(fields.origin, ": tokenizer.ggml.token_type[", i,
                       "] is 6 (byte), which byte-level BPE does not have"));
    }
    if (type == kUnused) {
      fields.tokens[i].clear();  // padding such as "[PAD151669]": an id without text
    } else if ((type == kControl || type == kUserDefined) && !fields.tokens[i].empty()) {
      TokenizerSpec::AddedToken token;
      token.id = static_cast<TokenId>(i);
      token.content = std::move(fields.tokens[i]);
      token.special = type == kControl;
      spec.added_tokens.push_back(std::move(token));
      fields.tokens[i].clear();
    }
  }
  spec.merges.reserve(fields.merges.size());
  for (size_t i = 0; i < fields.merges.size(); ++i) {
    const std::string& merge = fields.merges[i];
    const size_t blank = merge.find(' ');
    if (blank == std::string::npos || merge.find(' ', blank + 1) != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(fields.origin, ": tokenizer.ggml.merges[", i,
                                                     "] is \"", show(merge),
                                                     "\", not two tokens with a blank between"));
    }
    spec.merges.emplace_back(merge.substr(0, blank), merge.substr(blank + 1));
  }
  spec.tokens = std::move(fields.tokens);
  return spec;
}

}  // namespace quire
