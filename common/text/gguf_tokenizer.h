// From the tokenizer.* metadata of a GGUF file to a TokenizerSpec.
//
// The reader of the file fills GgufTokenizerFields (it owns the format and its limits: counts,
// value types); what the values mean is known here alone.
#ifndef QUIRE_COMMON_TEXT_GGUF_TOKENIZER_H_
#define QUIRE_COMMON_TEXT_GGUF_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"

namespace quire {

// Each field is the metadata value of the key beside it; absent keys stay as they are here. Ids and
// types are 64 bits wide, so that a value of any GGUF integer type arrives unharmed and is judged
// here.
struct GgufTokenizerFields {
  std::string model;                 // tokenizer.ggml.model; only "gpt2" is byte-level BPE
  std::optional<std::string> pre;    // tokenizer.ggml.pre
  std::vector<std::string> tokens;   // tokenizer.ggml.tokens, byte-level strings
  std::vector<int32_t> token_types;  // tokenizer.ggml.token_type: 1 normal, 2 unknown, 3 control,
                                     // 4 user defined, 5 unused, 6 byte; empty = all normal
  std::vector<std::string> merges;   // tokenizer.ggml.merges, "a b" each
  std::optional<int64_t> bos_id;     // tokenizer.ggml.bos_token_id
  std::optional<int64_t> eos_id;     // tokenizer.ggml.eos_token_id
  std::optional<bool> add_bos;       // tokenizer.ggml.add_bos_token
  std::optional<bool> add_eos;       // tokenizer.ggml.add_eos_token
  std::string chat_template;         // tokenizer.chat_template
  std::string origin;                // file name for messages
};

// Control and user-defined tokens become added tokens (matched in raw text), control ones special.
// The rest is checked by Tokenizer::Create, to which the result goes.
// Errors: INVALID_ARGUMENT naming origin, key, value and what is allowed; UNIMPLEMENTED for a
// tokenizer.ggml.model or tokenizer.ggml.pre that is not known here, naming key, value and the
// known values. A missing or "default" tokenizer.ggml.pre is refused too: files without it were
// made by tools that did not know how the model splits text, and a guess gives other ids without a
// sign.
absl::StatusOr<TokenizerSpec> SpecFromGgufMetadata(GgufTokenizerFields fields);

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_GGUF_TOKENIZER_H_
