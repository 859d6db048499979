#include "common/text/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/text/added_tokens.h"
#include "common/text/bpe.h"
#include "common/text/byte_level.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/unicode.h"

namespace quire {
namespace {

constexpr size_t kMaxVocab = size_t{kMaxTokenId} + 1;
constexpr size_t kMaxMerges = size_t{1} << 22;
// Longer than the longest real token (runs of blanks) by two orders of magnitude.
constexpr size_t kMaxTokenBytes = size_t{1} << 14;

absl::string_view Abbreviated(std::string_view s) {
  return absl::string_view(s.data(), std::min<size_t>(s.size(), 120));
}

// PieceTable finds the token that a whole piece is, if it is one. Open addressing on hashes; the
// bytes are compared in the token arena.
class PieceTable {
 public:
  void Reserve(size_t count) {
    size_t capacity = 16;
    while (capacity < 2 * count) capacity *= 2;
    slots_.assign(capacity, Slot{});
    mask_ = capacity - 1;
  }
  // Keeps the first of equal ones.
  template <typename BytesOf>
  void Add(std::string_view bytes, TokenId id, const BytesOf& bytes_of) {
    const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
    uint64_t i = hash & mask_;
    for (; slots_[i].id >= 0; i = (i + 1) & mask_) {
      if (slots_[i].tag == static_cast<uint32_t>(hash >> 32) && bytes_of(slots_[i].id) == bytes) {
        return;
      }
    }
    slots_[i] = {static_cast<uint32_t>(hash >> 32), id};
  }
  template <typename BytesOf>
  TokenId Find(std::string_view bytes, const BytesOf& bytes_of) const {
    const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
    for (uint64_t i = hash & mask_; slots_[i].id >= 0; i = (i + 1) & mask_) {
      if (slots_[i].tag == static_cast<uint32_t>(hash >> 32) && bytes_of(slots_[i].id) == bytes) {
        return slots_[i].id;
      }
    }
    return -1;
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    TokenId id = -1;
  };
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
};

class BpeTokenizer final : public Tokenizer {
 public:
  absl::Status Init(TokenizerSpec spec);

  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string DecodeBytes(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::string_view TokenBytes(TokenId id) const override {
    if (id < 0 || static_cast<size_t>(id) + 1 >= offsets_.size()) return {};
    return std::string_view(arena_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  bool IsSpecial(TokenId id) const override {
    return id >= 0 && static_cast<size_t>(id) < special_.size() && special_[id];
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(offsets_.size()) - 1; }
  std::optional<TokenId> bos_id() const override { return bos_id_; }
  std::optional<TokenId> eos_id() const override { return eos_id_; }
  std::optional<TokenId> FindToken(std::string_view content) const override {
    const auto it = by_content_.find(absl::string_view(content.data(), content.size()));
    if (it == by_content_.end()) return std::nullopt;
    return it->second;
  }
  const std::string& chat_template() const override { return chat_template_; }

 private:
  struct Added {
    TokenId id;
    bool special, lstrip, rstrip;
  };

  absl::Status InitVocab(TokenizerSpec& spec);
  absl::Status InitAdded(const TokenizerSpec& spec);
  absl::Status InitMerges(const TokenizerSpec& spec);
  void InitPieces(bool ignore_merges);

  // Cuts `text` at the added tokens that `matcher` knows; `on_text` gets what lies between.
  template <typename OnText>
  void SplitAdded(const AddedTokenMatcher& matcher, std::string_view text, bool parse_special,
                  std::vector<TokenId>& out, const OnText& on_text) const;
  void EncodePlain(std::string_view text, BpeScratch& scratch, std::vector<TokenId>& out) const;
  template <PreTokenizer kKind>
  void EncodePieces(std::string_view text, BpeScratch& scratch, std::vector<TokenId>& out) const;

  // All constant after Init.
  std::string origin_;
  PreTokenizer pre_tokenizer_ = PreTokenizer::kQwen2;
  bool nfc_ = false, add_bos_ = false, add_eos_ = false;
  std::optional<TokenId> bos_id_, eos_id_;
  std::string chat_template_;
  std::vector<std::string> contents_;  // [vocab] as in the file, added ones included
  absl::flat_hash_map<absl::string_view, TokenId> by_content_;  // views into contents_
  std::string arena_;                                           // bytes of all tokens
  std::vector<uint32_t> offsets_;                               // [vocab + 1] into arena_
  std::vector<bool> special_;                                   // [vocab]
  std::vector<bool> in_model_;                                  // [vocab] not only an added token
  std::vector<bool> byte_level_;                                // [vocab] written in the alphabet
  BpeMerger merger_;
  PieceTable pieces_;
  std::vector<Added> added_;
  AddedTokenMatcher raw_added_, normalized_added_;  // indexes into added_
};

absl::Status BpeTokenizer::Init(TokenizerSpec spec) {
  origin_ = spec.origin.empty() ? "tokenizer" : spec.origin;
  pre_tokenizer_ = spec.pre_tokenizer;
  nfc_ = spec.nfc;
  add_bos_ = spec.add_bos;
  add_eos_ = spec.add_eos;
  bos_id_ = spec.bos_id;
  eos_id_ = spec.eos_id;
  chat_template_ = std::move(spec.chat_template);
  RETURN_IF_ERROR(InitVocab(spec));
  RETURN_IF_ERROR(InitAdded(spec));
  RETURN_IF_ERROR(InitMerges(spec));
  InitPieces(spec.ignore_merges);
  for (const auto& [name, id] : {std::pair{"bos", bos_id_}, std::pair{"eos", eos_id_}}) {
    if (id.has_value() && (*id < 0 || *id >= vocab_size())) {
      return absl::InvalidArgumentError(absl::StrCat(origin_, ": ", name, " token id ", *id,
                                                     " is outside the vocabulary of ", vocab_size(),
                                                     " tokens"));
    }
  }
  for (const auto& [name, add, id] :
       {std::tuple{"bos", add_bos_, bos_id_}, std::tuple{"eos", add_eos_, eos_id_}}) {
    if (add && !id.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin_, ": add_", name, "_token is set, but there is no ", name, " token"));
    }
  }
  return absl::OkStatus();
}

// Fills contents_, by_content_, special_, arena_ and offsets_.
absl::Status BpeTokenizer::InitVocab(TokenizerSpec& spec) {
  contents_ = std::move(spec.tokens);
  size_t size = contents_.size();
  for (const TokenizerSpec::AddedToken& added : spec.added_tokens) {
    if (added.id < 0 || static_cast<size_t>(added.id) >= kMaxVocab) {
      return absl::InvalidArgumentError(absl::StrCat(origin_, ": added token \"",
                                                     Abbreviated(added.content), "\" has id ",
                                                     added.id, ", ids are 0 to ", kMaxVocab - 1));
    }
    size = std::max(size, static_cast<size_t>(added.id) + 1);
  }
  if (size > kMaxVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin_, ": vocabulary has ", size, " ids, at most ", kMaxVocab));
  }
  contents_.resize(size);
  special_.assign(size, false);
  in_model_.assign(size, false);
  for (size_t i = 0; i < size; ++i) in_model_[i] = !contents_[i].empty();
  std::vector<bool> is_added(size, false);
  for (const TokenizerSpec::AddedToken& added : spec.added_tokens) {
    std::string& content = contents_[added.id];
    if (is_added[added.id] || (!content.empty() && content != added.content)) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin_, ": added token \"", Abbreviated(added.content), "\" has id ",
                       added.id, ", which is that of \"", Abbreviated(content), "\""));
    }
    content = added.content;
    is_added[added.id] = true;
    special_[added.id] = added.special;
  }
  while (!contents_.empty() && contents_.back().empty()) contents_.pop_back();
  size = contents_.size();
  by_content_.reserve(size);
  offsets_.reserve(size + 1);
  offsets_.push_back(0);
  byte_level_.assign(size, false);
  for (size_t i = 0; i < size; ++i) {
    const std::string& content = contents_[i];
    if (content.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          origin_, ": token ", i, " has ", content.size(), " bytes, at most ", kMaxTokenBytes));
    }
    if (!content.empty()) {
      if (!IsValidUtf8(content)) {
        return absl::InvalidArgumentError(absl::StrCat(origin_, ": token ", i, " is not UTF-8"));
      }
      const auto [it, is_new] = by_content_.emplace(content, static_cast<TokenId>(i));
      if (!is_new) {
        return absl::InvalidArgumentError(absl::StrCat(origin_, ": token \"", Abbreviated(content),
                                                       "\" has two ids, ", it->second, " and ", i));
      }
      // An added token is plain text, whatever its characters would mean in the alphabet.
      if (is_added[i]) {
        arena_.append(content);
      } else {
        byte_level_[i] = kByteLevel.Append(content, arena_);
        if (!byte_level_[i]) arena_.append(content);
      }
    }
    if (arena_.size() > UINT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin_, ": tokens take more than ", UINT32_MAX, " bytes"));
    }
    offsets_.push_back(static_cast<uint32_t>(arena_.size()));
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::InitAdded(const TokenizerSpec& spec) {
  for (const TokenizerSpec::AddedToken& token : spec.added_tokens) {
    const auto fail = [&](absl::string_view what) {
      return absl::StrCat(origin_, ": added token ", token.id, " \"", Abbreviated(token.content),
                          "\" ", what);
    };
    if (token.content.empty()) return absl::InvalidArgumentError(fail("has no content"));
    if (token.content.size() > kMaxAddedTokenBytes) {
      return absl::InvalidArgumentError(fail(
          absl::StrCat("has ", token.content.size(), " bytes, at most ", kMaxAddedTokenBytes)));
    }
    if (token.single_word) {
      return absl::UnimplementedError(fail("has single_word = true, which is not supported"));
    }
    // Content that the normaliser changes is looked for as the normaliser leaves it.
    bool changed = false;
    std::string normal;
    if (token.normalized && nfc_) normal = ToNfc(token.content, &changed);
    AddedTokenMatcher& matcher = token.normalized ? normalized_added_ : raw_added_;
    if (!matcher.Add(changed ? normal : token.content, static_cast<int32_t>(added_.size()))) {
      return absl::InvalidArgumentError(fail("is there twice"));
    }
    added_.push_back({token.id, token.special, token.lstrip, token.rstrip});
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::InitMerges(const TokenizerSpec& spec) {
  std::array<TokenId, 256> byte_ids;
  for (int b = 0; b < 256; ++b) {
    const auto it = by_content_.find(kByteLevel.CharOf(b));
    const bool known = it != by_content_.end() && in_model_[it->second];
    byte_ids[b] = known ? it->second : BpeMerger::kNoToken;
  }
  merger_.SetByteTokens(byte_ids);
  if (spec.merges.size() > kMaxMerges) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin_, ": ", spec.merges.size(), " merges, at most ", kMaxMerges));
  }
  merger_.Reserve(spec.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const auto fail = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(origin_, ": merges[", rank, "] = (\"",
                                                     Abbreviated(left), "\", \"",
                                                     Abbreviated(right), "\") ", what));
    };
    // Both parts have bytes, so a merge always makes something longer: there are no cycles.
    if (left.empty() || right.empty()) return fail("has an empty part");
    joined.assign(left).append(right);
    const auto left_it = by_content_.find(left);
    if (left_it == by_content_.end()) return fail("has a left part that is no token");
    const auto right_it = by_content_.find(right);
    if (right_it == by_content_.end()) return fail("has a right part that is no token");
    const auto joined_it = by_content_.find(joined);
    if (joined_it == by_content_.end()) return fail("makes something that is no token");
    uint32_t existing = 0;
    if (!merger_.AddMerge(left_it->second, right_it->second, static_cast<uint32_t>(rank),
                          joined_it->second, &existing)) {
      return fail(absl::StrCat("is there already as merges[", existing, "]"));
    }
  }
  std::vector<unsigned char> first_bytes(contents_.size(), 0);
  for (TokenId id = 0; id < vocab_size(); ++id) {
    const std::string_view bytes = TokenBytes(id);
    if (!bytes.empty()) first_bytes[id] = static_cast<unsigned char>(bytes[0]);
  }
  merger_.Finish(first_bytes);
  return absl::OkStatus();
}

// With ignore_merges each token is a piece of its own; else only those that merging makes of their
// own bytes, for which the look-up saves the merging.
void BpeTokenizer::InitPieces(bool ignore_merges) {
  pieces_.Reserve(contents_.size());
  const auto bytes_of = [this](TokenId id) { return TokenBytes(id); };
  BpeScratch scratch;
  std::vector<TokenId> merged;
  for (TokenId id = 0; id < vocab_size(); ++id) {
    const std::string_view bytes = TokenBytes(id);
    if (!byte_level_[id] || bytes.empty()) continue;
    if (!ignore_merges) {
      merged.clear();
      merger_.MergeBytes(bytes, scratch, merged);
      if (merged.size() != 1 || merged[0] != id) continue;
    }
    pieces_.Add(bytes, id, bytes_of);
  }
}

template <typename OnText>
void BpeTokenizer::SplitAdded(const AddedTokenMatcher& matcher, std::string_view text,
                              bool parse_special, std::vector<TokenId>& out,
                              const OnText& on_text) const {
  size_t done = 0;
  size_t from = 0;
  while (const std::optional<AddedTokenMatcher::Match> match = matcher.Find(text, from)) {
    from = match->end;
    const Added& token = added_[match->index];
    if (token.special && !parse_special) continue;
    size_t begin = match->begin;
    size_t end = match->end;
    if (token.lstrip) {
      while (begin > done) {
        size_t before = begin - 1;
        while (before > done && (text[before] & 0xC0) == 0x80) --before;
        if (ClassOf(DecodeValidUtf8(text.data() + before).value) != CharClass::kSpace) break;
        begin = before;
      }
    }
    if (token.rstrip) {
      while (end < text.size()) {
        const Utf8Char c = DecodeValidUtf8(text.data() + end);
        if (ClassOf(c.value) != CharClass::kSpace) break;
        end += static_cast<size_t>(c.size);
      }
      from = end;
    }
    if (begin > done) on_text(text.substr(done, begin - done));
    out.push_back(token.id);
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

template <PreTokenizer kKind>
void BpeTokenizer::EncodePieces(std::string_view text, BpeScratch& scratch,
                                std::vector<TokenId>& out) const {
  const auto bytes_of = [this](TokenId id) {
    return std::string_view(arena_.data() + offsets_[id], offsets_[id + 1] - offsets_[id]);
  };
  while (!text.empty()) {
    const size_t n = NextPiece<kKind>(text);
    const std::string_view piece = text.substr(0, n);
    text.remove_prefix(n);
    const TokenId whole = pieces_.Find(piece, bytes_of);
    if (whole >= 0) {
      out.push_back(whole);
    } else {
      merger_.MergeText(piece, scratch, out);
    }
  }
}

void BpeTokenizer::EncodePlain(std::string_view text, BpeScratch& scratch,
                               std::vector<TokenId>& out) const {
  switch (pre_tokenizer_) {
    case PreTokenizer::kGpt2:
      return EncodePieces<PreTokenizer::kGpt2>(text, scratch, out);
    case PreTokenizer::kSmolLm:
      return EncodePieces<PreTokenizer::kSmolLm>(text, scratch, out);
    case PreTokenizer::kQwen2:
      return EncodePieces<PreTokenizer::kQwen2>(text, scratch, out);
    case PreTokenizer::kLlama3:
      return EncodePieces<PreTokenizer::kLlama3>(text, scratch, out);
    case PreTokenizer::kCl100k:
      return EncodePieces<PreTokenizer::kCl100k>(text, scratch, out);
  }
}

std::vector<TokenId> BpeTokenizer::Encode(std::string_view text,
                                          const EncodeOptions& options) const {
  std::string valid;
  if (!IsValidUtf8(text)) {
    valid = ReplaceInvalidUtf8(text);
    text = valid;
  }
  std::vector<TokenId> out;
  out.reserve(text.size() / 4 + 8);
  BpeScratch scratch;
  SplitAdded(raw_added_, text, options.parse_special_tokens, out, [&](std::string_view part) {
    std::string normal;
    if (nfc_) {
      bool changed = false;
      normal = ToNfc(part, &changed);
      if (changed) part = normal;
    }
    SplitAdded(normalized_added_, part, options.parse_special_tokens, out,
               [&](std::string_view plain) { EncodePlain(plain, scratch, out); });
  });
  if (options.add_special_tokens) {
    if (add_bos_ && (out.empty() || out.front() != *bos_id_)) out.insert(out.begin(), *bos_id_);
    if (add_eos_ && (out.empty() || out.back() != *eos_id_)) out.push_back(*eos_id_);
  }
  return out;
}

std::string BpeTokenizer::DecodeBytes(std::span<const TokenId> ids,
                                      bool skip_special_tokens) const {
  std::string out;
  for (const TokenId id : ids) {
    if (skip_special_tokens && IsSpecial(id)) continue;
    out.append(TokenBytes(id));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  auto tokenizer = std::make_unique<BpeTokenizer>();
  RETURN_IF_ERROR(tokenizer->Init(std::move(spec)));
  return tokenizer;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return ReplaceInvalidUtf8(DecodeBytes(ids, skip_special_tokens));
}

}  // namespace quire
