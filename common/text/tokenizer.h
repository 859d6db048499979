// Tokenizer: byte-level BPE between UTF-8 text and token ids.
//
// Immutable after construction and safe to share between threads. Built from a Hugging Face
// tokenizer.json (+ tokenizer_config.json) or from the tokenizer.* metadata of a GGUF file.
// Work is linear in the input: no regular expression is run on text, the known pre-tokeniser
// patterns (GPT-2, SmolLM, Qwen2/3, Llama 3, cl100k) are hand-written scanners, and merging a piece
// of n bytes costs O(n log n).
#ifndef QUIRE_COMMON_TEXT_TOKENIZER_H_
#define QUIRE_COMMON_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

using TokenId = int32_t;

// Ids index tables: four times the largest vocabulary known (262,144), and low enough that a
// hostile id costs megabytes, not gigabytes.
inline constexpr TokenId kMaxTokenId = (1 << 20) - 1;

enum class PreTokenizer { kGpt2, kSmolLm, kQwen2, kLlama3, kCl100k };

// What a tokenizer is made of, whatever file it came from. Untrusted until Tokenizer::Create.
struct TokenizerSpec {
  struct AddedToken {
    TokenId id;
    std::string content;
    bool special;  // vanishes from text when special tokens are skipped
    bool lstrip = false, rstrip = false, single_word = false, normalized = false;
  };
  std::vector<std::string> tokens;  // [vocab] byte-level strings ("Ġthe"); "" = id without text
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added_tokens;
  PreTokenizer pre_tokenizer = PreTokenizer::kQwen2;
  bool nfc = false;                       // normalise to NFC first
  bool ignore_merges = false;             // a piece that is a token is taken whole
  bool add_bos = false, add_eos = false;  // with add_special_tokens
  std::optional<TokenId> bos_id, eos_id;
  std::string chat_template;  // Jinja source, "" = none
  std::string origin;         // file name for messages
};

struct EncodeOptions {
  bool add_special_tokens = false;   // add BOS / EOS as the model wants for plain prompts
  bool parse_special_tokens = true;  // text that looks like an added token becomes that token
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Errors: INVALID_ARGUMENT naming origin, field and value (cyclic or unknown merges, ids past the
  // limit, duplicate tokens, ...); UNIMPLEMENTED likewise for what is well-formed but not
  // supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);

  // `json` is the content of tokenizer.json, `config_json` of tokenizer_config.json ("" = none).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromHuggingFace(std::string_view json,
                                                                    std::string_view config_json,
                                                                    const std::string& origin);

  // Malformed UTF-8 is read as U+FFFD per maximal invalid part.
  virtual std::vector<TokenId> Encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;

  // The bytes of the ids, joined; not necessarily whole characters. Ids without text (or outside
  // the vocabulary) give nothing.
  virtual std::string DecodeBytes(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;

  // DecodeBytes with each maximal invalid part replaced by U+FFFD.
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // Bytes of one token, a view that lives as long as the tokenizer.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;

  virtual int32_t vocab_size() const = 0;  // largest id with text + 1
  virtual std::optional<TokenId> bos_id() const = 0;
  virtual std::optional<TokenId> eos_id() const = 0;
  virtual std::optional<TokenId> FindToken(std::string_view content) const = 0;  // added or vocab
  virtual const std::string& chat_template() const = 0;
};

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_TOKENIZER_H_
