// tokenizer.json and tokenizer_config.json of Hugging Face, read into a TokenizerSpec. What is not
// supported is refused by the name of its field; nothing is skipped that would change ids.
#include <simdjson.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/text/byte_level.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/tokenizer.h"

namespace quire {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

// The vocabulary of a real model is 11 MB; this bounds what parsing may take.
constexpr size_t kMaxJsonBytes = size_t{256} << 20;

std::string Shown(element value) {
  std::string text = simdjson::minify(value);
  if (text.size() > 200) text = text.substr(0, 200) + "...";
  return text;
}

// One JSON value and the path to it, for messages.
class Field {
 public:
  Field(element value, std::string path) : value_(value), path_(std::move(path)) {}
  static Field Absent(std::string path) {
    Field field{element(), std::move(path)};
    field.present_ = false;
    return field;
  }

  bool present() const { return present_; }
  bool IsNull() const { return !present_ || value_.is_null(); }
  bool IsString() const { return present_ && value_.is_string(); }
  bool IsObject() const { return present_ && value_.is_object(); }
  bool IsArray() const { return present_ && value_.is_array(); }
  const std::string& path() const { return path_; }
  std::string Shown() const { return present_ ? quire::Shown(value_) : "absent"; }

  absl::Status WrongType(absl::string_view wanted) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, " is ", Shown(), ", not ", wanted));
  }
  absl::Status Unsupported(absl::string_view supported) const {
    return absl::UnimplementedError(
        absl::StrCat(path_, " is ", Shown(), ", which is not supported; supported: ", supported));
  }

  // Requires an object; the last one of equal keys counts, as in the reference.
  Field operator[](std::string_view key) const {
    Field found = Absent(absl::StrCat(path_, path_.ends_with(' ') ? "" : ".",
                                      absl::string_view(key.data(), key.size())));
    object fields;
    if (!present_ || value_.get(fields)) return found;
    for (const auto entry : fields) {
      if (entry.key == key) {
        found.value_ = entry.value;
        found.present_ = true;
      }
    }
    return found;
  }
  absl::StatusOr<std::string_view> String() const {
    std::string_view text;
    if (!present_ || value_.get(text)) return WrongType("a string");
    return text;
  }
  absl::StatusOr<bool> Bool() const {
    bool flag = false;
    if (!present_ || value_.get(flag)) return WrongType("true or false");
    return flag;
  }
  absl::StatusOr<bool> BoolOr(bool otherwise) const {
    if (IsNull()) return otherwise;
    return Bool();
  }
  absl::StatusOr<TokenId> Id() const {
    int64_t id = 0;
    if (!present_ || value_.get(id) || id < 0 || id > kMaxTokenId) {
      return WrongType(absl::StrCat("an id from 0 to ", kMaxTokenId));
    }
    return static_cast<TokenId>(id);
  }
  absl::StatusOr<std::vector<Field>> Items() const {
    array items;
    if (!present_ || value_.get(items)) return WrongType("an array");
    std::vector<Field> fields;
    for (const element item : items) {
      fields.emplace_back(item, absl::StrCat(path_, "[", fields.size(), "]"));
    }
    return fields;
  }
  absl::StatusOr<object> Object() const {
    object fields;
    if (!present_ || value_.get(fields)) return WrongType("an object");
    return fields;
  }
  element value() const { return value_; }

 private:
  element value_;
  std::string path_;
  bool present_ = true;
};

absl::StatusOr<element> Parse(simdjson::dom::parser& parser, std::string_view json,
                              const std::string& name) {
  if (json.size() > kMaxJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", json.size(), " bytes, at most ", kMaxJsonBytes));
  }
  element root;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root);
  if (error == simdjson::DEPTH_ERROR) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is nested too deeply, at most 1024 levels"));
  }
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " (", json.size(), " bytes) is no JSON: ", simdjson::error_message(error)));
  }
  if (!root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", Shown(root), ", not an object"));
  }
  return root;
}

absl::Status ReadVocab(const Field& vocab, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const object entries, vocab.Object());
  spec.tokens.reserve(entries.size());
  for (const auto entry : entries) {
    const std::string_view token = entry.key;
    const auto name = [&] {
      return absl::StrCat(vocab.path(), "[\"",
                          absl::string_view(token.data(), std::min<size_t>(token.size(), 120)),
                          "\"]");
    };
    int64_t id = 0;
    if (entry.value.get(id) || id < 0 || id > kMaxTokenId) {
      return absl::InvalidArgumentError(
          absl::StrCat(name(), " is ", Shown(entry.value), ", not an id from 0 to ", kMaxTokenId));
    }
    if (token.empty())
      return absl::InvalidArgumentError(absl::StrCat(name(), " is an empty token"));
    if (static_cast<size_t>(id) >= spec.tokens.size())
      spec.tokens.resize(static_cast<size_t>(id) + 1);
    std::string& slot = spec.tokens[static_cast<size_t>(id)];
    if (!slot.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(name(), " is ", id, ", which is the id of \"",
                                                     slot.substr(0, 120), "\" too"));
    }
    slot = token;
  }
  return absl::OkStatus();
}

// ["a", "b"], or "a b" as older files have it.
absl::Status ReadMerges(const Field& merges, TokenizerSpec& spec) {
  array entries;
  if (!merges.IsArray() || merges.value().get(entries)) return merges.WrongType("an array");
  spec.merges.reserve(entries.size());
  for (const element entry : entries) {
    const auto fail = [&] {
      return absl::InvalidArgumentError(
          absl::StrCat(merges.path(), "[", spec.merges.size(), "] is ", Shown(entry),
                       ", not a pair of tokens: [\"a\", \"b\"] or \"a b\""));
    };
    std::string_view text;
    array pair;
    if (!entry.get(text)) {
      const size_t blank = text.find(' ');
      if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
        return fail();
      }
      spec.merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
    } else if (!entry.get(pair)) {
      std::string_view parts[2];
      size_t n = 0;
      for (const element part : pair) {
        if (n == 2 || part.get(parts[n])) return fail();
        ++n;
      }
      if (n != 2) return fail();
      spec.merges.emplace_back(parts[0], parts[1]);
    } else {
      return fail();
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Field& model, TokenizerSpec& spec) {
  if (!model.IsObject()) return model.WrongType("an object");
  const Field type = model["type"];
  if (!type.IsNull()) {
    ASSIGN_OR_RETURN(const std::string_view name, type.String());
    if (name != "BPE") return type.Unsupported("\"BPE\"");
  }
  const Field dropout = model["dropout"];
  double dropout_value = 0;
  if (!dropout.IsNull() && (dropout.value().get(dropout_value) || dropout_value != 0)) {
    return dropout.Unsupported("null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Field field = model[key];
    if (field.IsNull()) continue;
    ASSIGN_OR_RETURN(const std::string_view text, field.String());
    if (!text.empty()) return field.Unsupported("null or \"\"");
  }
  ASSIGN_OR_RETURN(const bool byte_fallback, model["byte_fallback"].BoolOr(false));
  if (byte_fallback) return model["byte_fallback"].Unsupported("false");
  ASSIGN_OR_RETURN(spec.ignore_merges, model["ignore_merges"].BoolOr(false));
  RETURN_IF_ERROR(ReadVocab(model["vocab"], spec));
  const Field unk = model["unk_token"];
  if (!unk.IsNull()) {
    // Harmless where each byte has its token: then nothing is ever unknown.
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.push_back(kByteLevel.CharOf(b));
    size_t found = 0;
    for (const std::string& token : spec.tokens) {
      if (token.size() <= 2 && std::find(bytes.begin(), bytes.end(), token) != bytes.end()) ++found;
    }
    if (found != bytes.size()) return unk.Unsupported("null, where a byte has no token of its own");
  }
  return ReadMerges(model["merges"], spec);
}

absl::Status ReadAddedTokens(const Field& added, TokenizerSpec& spec) {
  if (added.IsNull()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<Field> items, added.Items());
  for (const Field& item : items) {
    if (!item.IsObject()) return item.WrongType("an object");
    TokenizerSpec::AddedToken token;
    ASSIGN_OR_RETURN(token.id, item["id"].Id());
    ASSIGN_OR_RETURN(const std::string_view content, item["content"].String());
    token.content = content;
    ASSIGN_OR_RETURN(token.special, item["special"].BoolOr(false));
    ASSIGN_OR_RETURN(token.lstrip, item["lstrip"].BoolOr(false));
    ASSIGN_OR_RETURN(token.rstrip, item["rstrip"].BoolOr(false));
    ASSIGN_OR_RETURN(token.single_word, item["single_word"].BoolOr(false));
    ASSIGN_OR_RETURN(token.normalized, item["normalized"].BoolOr(!token.special));
    spec.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizer(const Field& normalizer, TokenizerSpec& spec) {
  if (normalizer.IsNull()) return absl::OkStatus();
  if (!normalizer.IsObject()) return normalizer.WrongType("an object");
  ASSIGN_OR_RETURN(const std::string_view type, normalizer["type"].String());
  if (type == "NFC") {
    spec.nfc = true;
    return absl::OkStatus();
  }
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const std::vector<Field> parts, normalizer["normalizers"].Items());
    for (const Field& part : parts) {
      ASSIGN_OR_RETURN(const std::string_view part_type, part["type"].String());
      if (part_type != "NFC") return part["type"].Unsupported("\"NFC\"");
      spec.nfc = true;
    }
    return absl::OkStatus();
  }
  return normalizer["type"].Unsupported("null, \"NFC\" and a \"Sequence\" of these");
}

absl::StatusOr<PreTokenizer> ReadSplit(const Field& split) {
  const Field pattern = split["pattern"]["Regex"];
  if (!pattern.IsString()) return split["pattern"].Unsupported("{\"Regex\": ...}");
  ASSIGN_OR_RETURN(const std::string_view regex, pattern.String());
  ASSIGN_OR_RETURN(PreTokenizer kind, PreTokenizerOfPattern(regex, pattern.path()));
  ASSIGN_OR_RETURN(const std::string_view behavior, split["behavior"].String());
  ASSIGN_OR_RETURN(const bool invert, split["invert"].BoolOr(false));
  // The known patterns match every character, so that what lies between matches is empty: removing
  // the inverse is the same as isolating the matches.
  if (behavior == "Removed" && invert) {
    if (kind == PreTokenizer::kLlama3) kind = PreTokenizer::kCl100k;
    return kind;
  }
  if (behavior != "Isolated" || invert) {
    return split["behavior"].Unsupported(
        "\"Isolated\" with invert = false, \"Removed\" with invert = true");
  }
  return kind;
}

absl::Status ReadPreTokenizer(const Field& root, TokenizerSpec& spec) {
  const Field field = root["pre_tokenizer"];
  constexpr absl::string_view kKnown =
      "ByteLevel with use_regex (GPT-2); Digits (individual), ByteLevel with use_regex (SmolLM); "
      "Split by a known pattern, ByteLevel";
  if (!field.IsObject()) return field.Unsupported(kKnown);
  std::vector<Field> parts{field};
  ASSIGN_OR_RETURN(const std::string_view outer_type, field["type"].String());
  if (outer_type == "Sequence") {
    ASSIGN_OR_RETURN(parts, field["pretokenizers"].Items());
  }
  bool digits = false, byte_level = false;
  std::optional<PreTokenizer> split;
  for (const Field& part : parts) {
    ASSIGN_OR_RETURN(const std::string_view type, part["type"].String());
    if (byte_level) return field.Unsupported(kKnown);  // nothing may follow the byte mapping
    if (type == "Digits" && !digits && !split.has_value()) {
      ASSIGN_OR_RETURN(const bool individual, part["individual_digits"].BoolOr(false));
      if (!individual) return part["individual_digits"].Unsupported("true");
      digits = true;
    } else if (type == "Split" && !split.has_value()) {
      ASSIGN_OR_RETURN(split, ReadSplit(part));
    } else if (type == "ByteLevel") {
      ASSIGN_OR_RETURN(const bool prefix, part["add_prefix_space"].BoolOr(true));
      if (prefix) return part["add_prefix_space"].Unsupported("false");
      ASSIGN_OR_RETURN(const bool regex, part["use_regex"].BoolOr(true));
      if (regex && split.has_value()) return part["use_regex"].Unsupported("false behind a Split");
      if (regex) split = PreTokenizer::kGpt2;
      byte_level = true;
    } else {
      return part["type"].Unsupported(kKnown);
    }
  }
  if (!byte_level || !split.has_value()) return field.Unsupported(kKnown);
  if (digits && *split != PreTokenizer::kGpt2) return field.Unsupported(kKnown);
  spec.pre_tokenizer = digits ? PreTokenizer::kSmolLm : *split;
  return absl::OkStatus();
}

// TemplateProcessing as Llama 3 has it: special tokens before and behind the text.
absl::Status ReadTemplate(const Field& processor, TokenizerSpec& spec) {
  ASSIGN_OR_RETURN(const std::vector<Field> items, processor["single"].Items());
  bool behind = false;
  for (const Field& item : items) {
    if (item["Sequence"].IsObject()) {
      if (behind) return processor["single"].Unsupported("one Sequence");
      behind = true;
      continue;
    }
    ASSIGN_OR_RETURN(const std::string_view name, item["SpecialToken"]["id"].String());
    const Field ids = processor["special_tokens"][name]["ids"];
    ASSIGN_OR_RETURN(const std::vector<Field> id_list, ids.Items());
    if (id_list.size() != 1) return ids.Unsupported("one id a special token");
    ASSIGN_OR_RETURN(const TokenId id, id_list[0].Id());
    bool& add = behind ? spec.add_eos : spec.add_bos;
    if (add) return processor["single"].Unsupported("at most one special token on each side");
    add = true;
    (behind ? spec.eos_id : spec.bos_id) = id;
  }
  if (!behind) return processor["single"].Unsupported("one Sequence");
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const Field& processor, TokenizerSpec& spec) {
  if (processor.IsNull()) return absl::OkStatus();
  if (!processor.IsObject()) return processor.WrongType("an object");
  std::vector<Field> parts{processor};
  ASSIGN_OR_RETURN(const std::string_view outer_type, processor["type"].String());
  if (outer_type == "Sequence") {
    ASSIGN_OR_RETURN(parts, processor["processors"].Items());
  }
  for (const Field& part : parts) {
    ASSIGN_OR_RETURN(const std::string_view type, part["type"].String());
    if (type == "TemplateProcessing") {
      RETURN_IF_ERROR(ReadTemplate(part, spec));
    } else if (type != "ByteLevel") {  // which moves offsets only
      return part["type"].Unsupported("\"ByteLevel\", \"TemplateProcessing\", \"Sequence\"");
    }
  }
  return absl::OkStatus();
}

// "<s>", or {"content": "<s>", ...}; null or absent gives nothing.
absl::StatusOr<std::optional<TokenId>> NamedToken(const Field& field, const TokenizerSpec& spec) {
  if (field.IsNull()) return std::nullopt;
  const Field text = field.IsObject() ? field["content"] : field;
  ASSIGN_OR_RETURN(const std::string_view content, text.String());
  for (const TokenizerSpec::AddedToken& token : spec.added_tokens) {
    if (token.content == content) return token.id;
  }
  const auto it = std::find(spec.tokens.begin(), spec.tokens.end(), content);
  if (it == spec.tokens.end() || content.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field.path(), " is ", field.Shown(), ", which is no token"));
  }
  return static_cast<TokenId>(it - spec.tokens.begin());
}

// One string, or [{"name": ..., "template": ...}]: then the one that is named "default".
absl::Status ReadChatTemplate(const Field& field, TokenizerSpec& spec) {
  if (field.IsNull()) return absl::OkStatus();
  if (field.IsString()) {
    ASSIGN_OR_RETURN(const std::string_view text, field.String());
    spec.chat_template = text;
    return absl::OkStatus();
  }
  if (!field.IsArray()) return field.WrongType("a string or an array of named templates");
  ASSIGN_OR_RETURN(const std::vector<Field> items, field.Items());
  for (const Field& item : items) {
    ASSIGN_OR_RETURN(const std::string_view name, item["name"].String());
    ASSIGN_OR_RETURN(const std::string_view text, item["template"].String());
    if (name == "default" || items.size() == 1) spec.chat_template = text;
  }
  return absl::OkStatus();
}

absl::Status ReadConfig(const Field& config, TokenizerSpec& spec) {
  // A token that the template of tokenizer.json adds is the one; else the config names it.
  ASSIGN_OR_RETURN(const std::optional<TokenId> bos, NamedToken(config["bos_token"], spec));
  ASSIGN_OR_RETURN(const std::optional<TokenId> eos, NamedToken(config["eos_token"], spec));
  if (!spec.add_bos) spec.bos_id = bos;
  if (!spec.add_eos) spec.eos_id = eos;
  ASSIGN_OR_RETURN(const bool add_bos, config["add_bos_token"].BoolOr(spec.add_bos));
  ASSIGN_OR_RETURN(const bool add_eos, config["add_eos_token"].BoolOr(spec.add_eos));
  // Some files say add_bos_token = true and name none; the reference then adds nothing.
  spec.add_bos = add_bos && spec.bos_id.has_value();
  spec.add_eos = add_eos && spec.eos_id.has_value();
  return ReadChatTemplate(config["chat_template"], spec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromHuggingFace(std::string_view json,
                                                                      std::string_view config_json,
                                                                      const std::string& origin) {
  TokenizerSpec spec;
  spec.origin = origin.empty() ? "tokenizer.json" : origin;
  {
    simdjson::dom::parser parser;
    ASSIGN_OR_RETURN(const element document, Parse(parser, json, spec.origin));
    const Field root(document, absl::StrCat(spec.origin, ": "));
    RETURN_IF_ERROR(ReadModel(root["model"], spec));
    RETURN_IF_ERROR(ReadAddedTokens(root["added_tokens"], spec));
    RETURN_IF_ERROR(ReadNormalizer(root["normalizer"], spec));
    RETURN_IF_ERROR(ReadPreTokenizer(root, spec));
    RETURN_IF_ERROR(ReadPostProcessor(root["post_processor"], spec));
  }
  if (!config_json.empty()) {
    simdjson::dom::parser parser;
    const std::string name = absl::StrCat(spec.origin, " (tokenizer_config.json)");
    ASSIGN_OR_RETURN(const element document, Parse(parser, config_json, name));
    RETURN_IF_ERROR(ReadConfig(Field(document, absl::StrCat(name, ": ")), spec));
  }
  return Create(std::move(spec));
}

}  // namespace quire
