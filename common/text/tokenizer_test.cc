// Tokenizer on small vocabularies made here: what files may say, what is refused and how it is
// named.
#include "common/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "common/text/byte_level.h"
#include "common/text/gguf_tokenizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/text_test_data.h"
#include "common/text/unicode.h"

namespace quire {
namespace {

using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json Added(int id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// 256 bytes at ids 0 to 255, merges from 256 on, two added tokens behind.
Json SmallJson() {
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) vocab[kByteLevel.CharOf(b)] = b;
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"h", "e"}, {"t", "he"}, {"\u0120", "the"}, {"\u00c3", "\u00a9"}, {"l", "l"}};
  Json merges = Json::array();
  int id = 256;
  for (const auto& [a, b] : pairs) {
    vocab[a + b] = id++;
    merges.push_back({a, b});
  }
  vocab["hello"] = id++;  // 261: no merges lead to it
  return {{"version", "1.0"},
          {"added_tokens", {Added(262, "<s>"), Added(263, "<think>", false)}},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", kQwen2Pattern}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", merges}}}};
}

std::unique_ptr<Tokenizer> Load(const Json& json, const Json& config = Json()) {
  auto made = Tokenizer::FromHuggingFace(json.dump(), config.is_null() ? "" : config.dump(),
                                         "dir/tokenizer.json");
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

absl::Status LoadError(const Json& json, const Json& config = Json()) {
  return Tokenizer::FromHuggingFace(json.dump(), config.is_null() ? "" : config.dump(),
                                    "dir/tokenizer.json")
      .status();
}

std::vector<TokenId> BytesOf(const std::string& text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(Tokenizer, SmallVocabulary) {
  const auto tokenizer = Load(SmallJson());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("the the", {}), ElementsAre(257, 258));
  EXPECT_THAT(tokenizer->Encode("hello", {}), ElementsAre(256, 260, 'o'));
  EXPECT_THAT(tokenizer->Encode("e\u0301", {}), ElementsAre(259));  // NFC
  EXPECT_THAT(tokenizer->Encode("", {}), ElementsAre());
  EXPECT_EQ(tokenizer->vocab_size(), 264);
  EXPECT_EQ(tokenizer->TokenBytes(258), " the");
  EXPECT_EQ(tokenizer->TokenBytes(262), "<s>");
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{262, 263, 257}, true), "<think>the");
  EXPECT_EQ(tokenizer->FindToken("\u0120the"), 258);
  EXPECT_EQ(tokenizer->FindToken("<s>"), 262);
  EXPECT_EQ(tokenizer->FindToken("nothing"), std::nullopt);
}

TEST(Tokenizer, MergesAsStringsAreTheSame) {
  Json json = SmallJson();
  for (Json& merge : json["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const auto tokenizer = Load(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("the the", {}), ElementsAre(257, 258));
}

TEST(Tokenizer, IgnoreMergesTakesWholePieces) {
  Json json = SmallJson();
  json["model"]["ignore_merges"] = true;
  const auto tokenizer = Load(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("hello", {}), ElementsAre(261));
  EXPECT_THAT(tokenizer->Encode("hellos", {}), ElementsAre(256, 260, 'o', 's'));
}

TEST(Tokenizer, AddedTokensMatchLeftmostLongestInRawText) {
  Json json = SmallJson();
  json["added_tokens"] = {Added(262, "<s>"), Added(263, "<s><s>", false), Added(264, "s>x"),
                          Added(265, "\u212b", false)};
  const auto tokenizer = Load(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("<s><s><s>", {}), ElementsAre(263, 262));
  EXPECT_THAT(tokenizer->Encode("<s>x", {}), ElementsAre(262, 'x'));
  EXPECT_THAT(tokenizer->Encode("\u212b", {}), ElementsAre(265));  // before NFC
  EncodeOptions plain;
  plain.parse_special_tokens = false;
  EXPECT_THAT(tokenizer->Encode("<s><s>", plain), ElementsAre(263));  // not special
  EXPECT_EQ(tokenizer->Encode("<s>", plain), BytesOf("<s>"));
}

TEST(Tokenizer, StripsAndNormalizedAreHonoured) {
  Json json = SmallJson();
  Json left = Added(262, "<l>"), right = Added(263, "<r>"), normal = Added(264, "\u00e9!");
  left["lstrip"] = true;
  right["rstrip"] = true;
  normal["normalized"] = true;
  json["added_tokens"] = {left, right, normal};
  const auto tokenizer = Load(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("a \u3000\n<l> b", {}), ElementsAre('a', 262, ' ', 'b'));
  EXPECT_THAT(tokenizer->Encode("a <r> \t\u00a0b", {}), ElementsAre('a', ' ', 263, 'b'));
  EXPECT_THAT(tokenizer->Encode("<r>  <l>", {}), ElementsAre(263, 262));
  EXPECT_THAT(tokenizer->Encode(" <l><r> ", {}), ElementsAre(262, 263));
  EXPECT_THAT(tokenizer->Encode("e\u0301!", {}), ElementsAre(264));  // found behind NFC
}

TEST(Tokenizer, BosAndEos) {
  Json json = SmallJson();
  json["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}},
         {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {262}}}}}}}}}};
  EncodeOptions with;
  with.add_special_tokens = true;
  auto tokenizer = Load(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->bos_id(), 262);
  EXPECT_THAT(tokenizer->Encode("he", with), ElementsAre(262, 256));
  EXPECT_THAT(tokenizer->Encode("", with), ElementsAre(262));
  EXPECT_THAT(tokenizer->Encode("he", {}), ElementsAre(256));
  EXPECT_THAT(tokenizer->Encode("<s>he", with), ElementsAre(262, 256));  // once

  tokenizer = Load(json, {{"add_bos_token", false}, {"eos_token", "<think>"}});
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("he", with), ElementsAre(256));
  EXPECT_EQ(tokenizer->eos_id(), 263);

  tokenizer = Load(SmallJson(), {{"add_bos_token", true},
                                 {"add_eos_token", true},
                                 {"bos_token", {{"content", "<s>"}}},
                                 {"eos_token", "<think>"}});
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("he", with), ElementsAre(262, 256, 263));

  tokenizer = Load(SmallJson(), {{"add_bos_token", true}, {"bos_token", nullptr}});
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("he", with), ElementsAre(256));
}

TEST(Tokenizer, ChatTemplateAsStringOrByName) {
  auto tokenizer = Load(SmallJson(), {{"chat_template", "one"}});
  EXPECT_EQ(tokenizer->chat_template(), "one");
  tokenizer = Load(SmallJson(), {{"chat_template",
                                  {{{"name", "tool_use"}, {"template", "two"}},
                                   {{"name", "default"}, {"template", "three"}}}}});
  EXPECT_EQ(tokenizer->chat_template(), "three");
  EXPECT_EQ(Load(SmallJson())->chat_template(), "");
}

TEST(Tokenizer, UnknownTokenIsHarmlessWhereAllBytesAreKnown) {
  Json json = SmallJson();
  json["model"]["unk_token"] = "<s>";
  EXPECT_NE(Load(json), nullptr);
  json["model"]["vocab"].erase("a");
  const absl::Status status = LoadError(json);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.unk_token is \"<s>\""));
}

TEST(Tokenizer,
     BytesWithoutATokenVanish) {  // as in the reference, which has nothing to give for them
  Json json = SmallJson();
  json["model"]["vocab"].erase("a");
  const auto tokenizer = Load(json);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode("thae", {}), ElementsAre(257));
}

TEST(Tokenizer, PreTokenizersAreTakenByTheirParts) {
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  Json json = SmallJson();
  json["pre_tokenizer"] = byte_level;  // GPT-2
  EXPECT_THAT(Load(json)->Encode("a  12", {}), ElementsAre('a', ' ', ' ', '1', '2'));
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}};
  EXPECT_NE(Load(json), nullptr);
  json["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false;
  EXPECT_THAT(std::string(LoadError(json).message()), HasSubstr("individual_digits is false"));
  json["pre_tokenizer"]["pretokenizers"] = {byte_level, byte_level};
  EXPECT_THAT(std::string(LoadError(json).message()), HasSubstr("pre_tokenizer is"));
}

TEST(PreTokenizer, PiecesOfEachKind) {
  struct Case {
    PreTokenizer kind;
    const char* text;
    std::vector<std::string> pieces;
  };
  const std::vector<Case> cases = {
      {PreTokenizer::kGpt2,
       "It's 12 o'clock  ok",
       {"It", "'s", " 12", " o", "'", "clock", " ", " ok"}},
      {PreTokenizer::kGpt2, "IT'S \n\n x ", {"IT", "'", "S", " \n\n", " x", " "}},
      {PreTokenizer::kGpt2, " ?!\n a", {" ?!", "\n", " a"}},
      {PreTokenizer::kSmolLm, "a  12 b 3", {"a", "  ", "1", "2", " b", " ", "3"}},
      {PreTokenizer::kSmolLm, "x1's", {"x", "1", "'s"}},
      {PreTokenizer::kQwen2,
       "IT'S'ſ (x) 12\n\n",
       {"IT", "'S", "'ſ", " (", "x", ")", " ", "1", "2", "\n\n"}},
      {PreTokenizer::kQwen2, "a\u0301b", {"a", "\u0301b"}},
      {PreTokenizer::kQwen2, "\tx\n y", {"\tx", "\n", " y"}},
      {PreTokenizer::kQwen2, " \n  \n z", {" \n  \n", " z"}},
      {PreTokenizer::kQwen2, "\nx", {"\n", "x"}},
      {PreTokenizer::kQwen2, "\u3000?", {"\u3000", "?"}},
      {PreTokenizer::kQwen2, "'", {"'"}},
      {PreTokenizer::kQwen2, "'r", {"'r"}},
      {PreTokenizer::kQwen2, "   ", {"   "}},
      {PreTokenizer::kLlama3, "12345 6", {"123", "45", " ", "6"}},
      {PreTokenizer::kCl100k, "x = 1000;\r\n", {"x", " =", " ", "100", "0", ";\r\n"}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> pieces;
    for (const std::string_view piece : SplitPieces(c.kind, c.text)) pieces.emplace_back(piece);
    EXPECT_EQ(pieces, c.pieces) << c.text;
  }
}

TEST(PreTokenizer, PatternsInTheirSpellings) {
  const std::string tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const auto kind = [](const std::string& pattern) { return PreTokenizerOfPattern(pattern, "f"); };
  EXPECT_EQ(*kind(kQwen2Pattern), PreTokenizer::kQwen2);
  EXPECT_EQ(*kind(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" + tail),
            PreTokenizer::kLlama3);
  EXPECT_EQ(
      *kind(
          R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"),
      PreTokenizer::kLlama3);
  EXPECT_EQ(*kind(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
            PreTokenizer::kGpt2);
  // Qwen3.5 has marks with the letters: near, but another pattern.
  const std::string marks =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})" + tail;
  const auto refused = kind(marks);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), AllOf(HasSubstr("f is"), HasSubstr(marks)));
}

// What a hostile or strange file is answered: the field and the value, never a crash or a guess.
TEST(Tokenizer, BadFilesAreNamed) {
  struct Case {
    const char* name;
    std::function<void(Json&)> change;
    std::string named;
  };
  const auto model = [](const char* key, Json value) {
    return [key, value](Json& j) { j["model"][key] = value; };
  };
  const std::vector<Case> cases = {
      {"no_model", [](Json& j) { j.erase("model"); }, "model is absent"},
      {"model_is_text", [](Json& j) { j["model"] = "BPE"; }, "model is \"BPE\""},
      {"unigram", model("type", "Unigram"), "model.type is \"Unigram\""},
      {"dropout", model("dropout", 0.1), "model.dropout is 0.1"},
      {"byte_fallback", model("byte_fallback", true), "model.byte_fallback is true"},
      {"byte_fallback_text", model("byte_fallback", "yes"), "model.byte_fallback is \"yes\""},
      {"prefix", model("continuing_subword_prefix", "##"), "continuing_subword_prefix is \"##\""},
      {"suffix", model("end_of_word_suffix", "</w>"), "end_of_word_suffix is \"</w>\""},
      {"vocab_is_array", model("vocab", Json::array()), "model.vocab is []"},
      {"merges_absent", [](Json& j) { j["model"].erase("merges"); }, "model.merges is absent"},
      {"id_negative", [](Json& j) { j["model"]["vocab"]["a"] = -1; }, "model.vocab[\"a\"] is -1"},
      {"id_huge", [](Json& j) { j["model"]["vocab"]["a"] = 1048576; }, "0 to 1048575"},
      {"id_fraction", [](Json& j) { j["model"]["vocab"]["a"] = 1.5; }, "model.vocab[\"a\"] is 1.5"},
      {"id_twice", [](Json& j) { j["model"]["vocab"]["a"] = 98; }, "which is the id of"},
      {"token_empty", [](Json& j) { j["model"]["vocab"][""] = 300; }, "is an empty token"},
      {"token_long", [](Json& j) { j["model"]["vocab"][std::string(20000, 'x')] = 300; },
       "has 20000 bytes, at most 16384"},
      {"merge_three", [](Json& j) { j["model"]["merges"][1] = "a b c"; },
       "model.merges[1] is \"a b c\""},
      {"merge_one", [](Json& j) { j["model"]["merges"][1] = "ab"; }, "model.merges[1] is \"ab\""},
      {"merge_number",
       [](Json& j) {
         j["model"]["merges"][1] = {"a", 2};
       },
       "model.merges[1] is"},
      {"merge_long_pair",
       [](Json& j) {
         j["model"]["merges"][1] = {"a", "b", "c"};
       },
       "merges[1]"},
      {"merge_left_unknown",
       [](Json& j) {
         j["model"]["merges"][0] = {"zz", "e"};
       },
       "merges[0] = (\"zz\", \"e\") has a left part that is no token"},
      {"merge_right_unknown",
       [](Json& j) {
         j["model"]["merges"][0] = {"h", "zz"};
       },
       "has a right part that is no token"},
      {"merge_of_nothing",
       [](Json& j) {
         j["model"]["merges"][0] = {"h", "h"};
       },
       "makes something that is no token"},
      {"merge_cycle",
       [](Json& j) {
         j["model"]["merges"][0] = {"", "he"};
       },
       "has an empty part"},
      {"merge_twice",
       [](Json& j) {
         j["model"]["merges"][4] = {"h", "e"};
       },
       "is there already as merges[0]"},
      {"added_is_object", [](Json& j) { j["added_tokens"] = Json::object(); },
       "added_tokens is {}"},
      {"added_id_text", [](Json& j) { j["added_tokens"][0]["id"] = "1"; },
       "added_tokens[0].id is \"1\""},
      {"added_id_huge", [](Json& j) { j["added_tokens"][0]["id"] = 2147483647; },
       "added_tokens[0].id is 2147483647"},
      {"added_no_content", [](Json& j) { j["added_tokens"][0].erase("content"); },
       "added_tokens[0].content is absent"},
      {"added_empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }, "has no content"},
      {"added_long", [](Json& j) { j["added_tokens"][0]["content"] = std::string(2000, 'x'); },
       "has 2000 bytes, at most 1024"},
      {"added_id_taken", [](Json& j) { j["added_tokens"][0]["id"] = 65; },
       "which is that of \"A\""},
      {"added_twice", [](Json& j) { j["added_tokens"][1]["content"] = "<s>"; },
       "has two ids, 262 and 263"},
      {"added_id_twice", [](Json& j) { j["added_tokens"][1]["id"] = 262; },
       "which is that of \"<s>\""},
      {"single_word", [](Json& j) { j["added_tokens"][0]["single_word"] = true; },
       "single_word = true"},
      {"nfkc", [](Json& j) { j["normalizer"]["type"] = "NFKC"; }, "normalizer.type is \"NFKC\""},
      {"no_split", [](Json& j) { j["pre_tokenizer"] = nullptr; }, "pre_tokenizer is null"},
      {"metaspace",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       "type is \"Metaspace\""},
      {"pattern",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\d+"; },
       "pretokenizers[0].pattern.Regex is a pattern that is not known here: \"\\d+\""},
      {"pattern_string",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}};
       },
       "pretokenizers[0].pattern is {\"String\":\" \"}"},
      {"behavior",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; },
       "behavior is \"MergedWithNext\""},
      {"prefix_space",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
       "add_prefix_space is true"},
      {"post",
       [](Json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       },
       "BertProcessing"},
      {"post_empty",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}};
       },
       "post_processor.single is absent"},
      {"post_no_id",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                                {"special_tokens", Json::object()}};
       },
       "special_tokens.<s>.ids is absent"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Json json = SmallJson();
    c.change(json);
    const absl::Status status = LoadError(json);
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("dir/tokenizer.json"), HasSubstr(c.named)));
  }
  const std::vector<std::pair<Json, std::string>> configs = {
      {{{"bos_token", "<none>"}}, "bos_token is \"<none>\", which is no token"},
      {{{"eos_token", 3}}, "eos_token is 3"},
      {{{"add_bos_token", 1}}, "add_bos_token is 1"},
      {{{"chat_template", 1}}, "chat_template is 1"},
      {{{"chat_template", {{{"name", "x"}}}}}, "chat_template[0].template is absent"},
      {Json::array(), "tokenizer_config.json) is [], not an object"},
  };
  for (const auto& [config, named] : configs) {
    const absl::Status status = LoadError(SmallJson(), config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  }
}

TEST(Tokenizer, FilesThatAreNoJson) {
  const std::string good = SmallJson().dump();
  for (const std::string& json :
       {std::string(), std::string("{"), std::string(100000, '['), good.substr(0, good.size() / 2),
        good + "}", std::string("nul"), std::string("\xff\xfe"), std::string("[]"),
        "{\"a\":" + std::string(3000, '[') + std::string(3000, ']') + "}"}) {
    const absl::Status status = Tokenizer::FromHuggingFace(json, "", "t.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json.substr(0, 50);
    EXPECT_THAT(std::string(status.message()), HasSubstr("t.json"));
  }
}

TEST(Tokenizer, SpecsThatAreWrong) {
  const auto create = [](const std::function<void(TokenizerSpec&)>& change) {
    TokenizerSpec spec;
    spec.origin = "file.gguf";
    spec.tokens = {"a", "b", "ab"};
    spec.merges = {{"a", "b"}};
    change(spec);
    return Tokenizer::Create(std::move(spec)).status();
  };
  EXPECT_TRUE(create([](TokenizerSpec&) {}).ok());
  const std::vector<std::pair<std::function<void(TokenizerSpec&)>, std::string>> cases = {
      {[](TokenizerSpec& s) { s.bos_id = 3; }, "bos token id 3 is outside the vocabulary of 3"},
      {[](TokenizerSpec& s) { s.eos_id = -1; }, "eos token id -1"},
      {[](TokenizerSpec& s) { s.add_bos = true; },
       "add_bos_token is set, but there is no bos token"},
      {[](TokenizerSpec& s) { s.tokens.push_back("a"); }, "token \"a\" has two ids, 0 and 3"},
      {[](TokenizerSpec& s) { s.tokens.push_back("\xff"); }, "token 3 is not UTF-8"},
      {[](TokenizerSpec& s) {
         s.added_tokens.push_back({-1, "x", true});
       },
       "\"x\" has id -1"},
      {[](TokenizerSpec& s) {
         s.added_tokens.push_back({1 << 20, "x", true});
       },
       "ids are 0 to"},
      {[](TokenizerSpec& s) { s.tokens.resize((1 << 20) + 1); }, "at most 1048576"},
  };
  for (const auto& [change, named] : cases) {
    const absl::Status status = create(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("file.gguf"), HasSubstr(named)));
  }
}

GgufTokenizerFields GgufFields() {
  GgufTokenizerFields fields;
  fields.origin = "m.gguf";
  fields.model = "gpt2";
  fields.pre = "qwen2";
  for (int b = 0; b < 256; ++b) fields.tokens.push_back(kByteLevel.CharOf(b));
  fields.tokens.insert(fields.tokens.end(), {"he", "<s>", "<think>", "[PAD259]"});
  fields.token_types.assign(256, 1);
  fields.token_types.insert(fields.token_types.end(), {1, 3, 4, 5});
  fields.merges = {"h e"};
  fields.eos_id = 257;
  return fields;
}

TEST(GgufTokenizer, FieldsBecomeASpec) {
  GgufTokenizerFields fields = GgufFields();
  fields.bos_id = 257;
  fields.add_bos = true;
  fields.chat_template = "t";
  auto spec = SpecFromGgufMetadata(fields);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->nfc);
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EncodeOptions with;
  with.add_special_tokens = true;
  EXPECT_THAT((*tokenizer)->Encode("he<think>", with), ElementsAre(257, 256, 258));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{257, 258, 259, 256}, true), "<think>he");
  EXPECT_EQ((*tokenizer)->chat_template(), "t");
  EXPECT_TRUE((*tokenizer)->IsSpecial(257));

  fields = GgufFields();
  fields.pre = "llama-bpe";
  fields.bos_id = 257;
  spec = SpecFromGgufMetadata(fields);
  ASSERT_TRUE(spec.ok());
  EXPECT_TRUE(spec->add_bos);  // these files may leave the key out
  EXPECT_TRUE(spec->ignore_merges);
  EXPECT_EQ(spec->pre_tokenizer, PreTokenizer::kLlama3);
}

TEST(GgufTokenizer, BadFieldsAreNamed) {
  const std::vector<std::pair<std::function<void(GgufTokenizerFields&)>, std::vector<std::string>>>
      cases = {
          {[](auto& f) { f.model = "llama"; }, {"tokenizer.ggml.model", "\"llama\"", "gpt2"}},
          {[](auto& f) { f.pre = "qwen9-imaginary"; },
           {"tokenizer.ggml.pre", "qwen9-imaginary", "qwen2", "llama-bpe", "smollm", "gpt-2"}},
          {[](auto& f) { f.pre.reset(); }, {"tokenizer.ggml.pre is missing", "qwen2"}},
          {[](auto& f) { f.pre = "default"; }, {"tokenizer.ggml.pre is \"default\""}},
          {[](auto& f) { f.tokens.clear(); }, {"tokenizer.ggml.tokens"}},
          {[](auto& f) { f.token_types.pop_back(); }, {"tokenizer.ggml.token_type has 259", "260"}},
          {[](auto& f) { f.token_types[3] = 9; }, {"tokenizer.ggml.token_type[3] is 9"}},
          {[](auto& f) { f.token_types[3] = 6; }, {"tokenizer.ggml.token_type[3] is 6"}},
          {[](auto& f) { f.merges.push_back("h"); }, {"tokenizer.ggml.merges[1] is \"h\""}},
          {[](auto& f) { f.merges.push_back("h e l"); }, {"tokenizer.ggml.merges[1]"}},
          {[](auto& f) { f.eos_id = 260; }, {"tokenizer.ggml.eos_token_id is 260", "260 entries"}},
          {[](auto& f) { f.bos_id = -1; }, {"tokenizer.ggml.bos_token_id is -1"}},
          {[](auto& f) { f.bos_id = int64_t{1} << 40; },
           {"tokenizer.ggml.bos_token_id is 1099511627776"}},
      };
  for (const auto& [change, named] : cases) {
    GgufTokenizerFields fields = GgufFields();
    change(fields);
    const absl::Status status = SpecFromGgufMetadata(fields).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("m.gguf"));
    for (const std::string& part : named)
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(GgufTokenizer, SmolLm2Goldens) {
  const Json json = Json::parse(test::ReadData("tokenizer_smollm2/gguf_fields.json.xz"));
  GgufTokenizerFields fields;
  fields.origin = "smollm2.gguf";
  fields.model = json["model"];
  fields.pre = json["pre"].get<std::string>();
  fields.tokens = json["tokens"].get<std::vector<std::string>>();
  fields.token_types = json["token_type"].get<std::vector<int32_t>>();
  fields.merges = json["merges"].get<std::vector<std::string>>();
  fields.bos_id = json["bos_token_id"].get<int64_t>();
  fields.eos_id = json["eos_token_id"].get<int64_t>();
  fields.add_bos = json["add_bos_token"].get<bool>();
  fields.chat_template = json["chat_template"];
  auto spec = SpecFromGgufMetadata(std::move(fields));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  for (const Json& row : test::ReadJsonLines("tokenizer_smollm2/golden.jsonl.xz")) {
    const std::string text = row["text"];
    const auto ids = row["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ((*tokenizer)->Encode(text, {}), ids) << text;
    EXPECT_EQ((*tokenizer)->Decode(ids, false), row["decoded"].get<std::string>());
  }
}

std::string RandomUtf8(std::mt19937_64& rng) {
  std::string text;
  for (size_t n = rng() % 60; n > 0; --n) {
    const uint64_t kind = rng() % 8;
    char32_t c = kind < 3   ? 32 + static_cast<char32_t>(rng() % 95)
                 : kind < 4 ? static_cast<char32_t>(rng() % 0x800)
                 : kind < 5 ? static_cast<char32_t>(0x4E00 + rng() % 0x5200)
                 : kind < 6 ? static_cast<char32_t>(rng() % 0x110000)
                 : kind < 7 ? static_cast<char32_t>("\n\r\t  \x0b"[rng() % 6])
                            : static_cast<char32_t>('0' + rng() % 10);
    if (c >= 0xD800 && c < 0xE000) c = ' ';
    AppendUtf8(c, text);
  }
  return text;
}

TEST(Tokenizer, RandomTextComesBack) {
  std::mt19937_64 rng(20261201);
  const Tokenizer& qwen3 = test::RealTokenizer("tokenizer_qwen3");
  const Tokenizer& cl100k = test::RealTokenizer("tokenizer_cl100k");
  for (int round = 0; round < 3000; ++round) {
    const std::string text = RandomUtf8(rng);
    bool changed = false;
    const std::string nfc = ToNfc(text, &changed);
    ASSERT_EQ(qwen3.DecodeBytes(qwen3.Encode(text, {}), false), changed ? nfc : text);
    ASSERT_EQ(cl100k.DecodeBytes(cl100k.Encode(text, {}), false), text);
    std::string bytes;
    for (size_t n = rng() % 40; n > 0; --n) bytes.push_back(static_cast<char>(rng() % 256));
    ASSERT_EQ(cl100k.DecodeBytes(cl100k.Encode(bytes, {}), false), ReplaceInvalidUtf8(bytes));
  }
}

TEST(PreTokenizer, PiecesJoinedAreTheText) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = RandomUtf8(rng);
    for (const PreTokenizer kind :
         {PreTokenizer::kGpt2, PreTokenizer::kSmolLm, PreTokenizer::kQwen2, PreTokenizer::kLlama3,
          PreTokenizer::kCl100k}) {
      std::string joined;
      for (const std::string_view piece : SplitPieces(kind, text)) {
        ASSERT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(Tokenizer, MegabytesWithoutABlank) {
  const Tokenizer& qwen3 = test::RealTokenizer("tokenizer_qwen3");
  for (const char* unit : {"a", "ab", " ", "\n", "\u4e2d", "!", "7", "\u0301"}) {
    std::string text;
    while (text.size() < 300000) text += unit;
    bool changed = false;
    const std::string nfc = ToNfc(text, &changed);
    EXPECT_EQ(qwen3.DecodeBytes(qwen3.Encode(text, {}), false), changed ? nfc : text) << unit;
  }
}

// Bytes and values of a good file changed at random: an error that names the file, or a tokenizer
// that works. The sanitizer presets watch over this one.
TEST(TokenizerFuzz, MutatedFiles) {
  std::mt19937_64 rng(20261201);
  const std::string good = SmallJson().dump();
  const Json good_json = SmallJson();
  int loaded = 0, refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string json = good;
    if (round % 3 == 0) {  // bytes
      for (size_t n = 1 + rng() % 4; n > 0; --n) {
        const size_t at = rng() % json.size();
        switch (rng() % 4) {
          case 0:
            json[at] = static_cast<char>(rng() % 256);
            break;
          case 1:
            json.erase(at, 1 + rng() % 20);
            break;
          case 2:
            json.insert(at, json.substr(rng() % json.size(), rng() % 30));
            break;
          default:
            json.resize(at + 1);
        }
        if (json.empty()) json = "{";
      }
    } else {  // values: one leaf becomes something else
      const Json flat = good_json.flatten();
      auto it = flat.begin();
      // Most leaves are the vocabulary: half of the time one of the others.
      const size_t others = rng() % 2 == 0 ? rng() % 25 : flat.size() - 1 - rng() % 14;
      std::advance(it, static_cast<int>(round % 2 == 0 ? others : rng() % flat.size()));
      const Json values[] = {nullptr,       true,           -1, 1e300, INT64_MAX,
                             UINT64_MAX,    1048575,        "", "<s>", std::string(5000, 'y'),
                             Json::array(), Json::object(), 97};
      Json changed = good_json;
      changed[Json::json_pointer(it.key())] = values[rng() % std::size(values)];
      json = changed.dump();
    }
    const auto made = Tokenizer::FromHuggingFace(json, "", "mutated.json");
    if (!made.ok()) {
      ++refused;
      EXPECT_TRUE(absl::IsInvalidArgument(made.status()) || absl::IsUnimplemented(made.status()))
          << made.status();
      EXPECT_THAT(std::string(made.status().message()), HasSubstr("mutated.json"));
      continue;
    }
    ++loaded;
    const std::string text = "the hello\u00e9 <s><think> 123 \n";
    const auto ids = (*made)->Encode(text, {});
    for (const TokenId id : ids) EXPECT_LT(id, (*made)->vocab_size());
    (*made)->Decode(ids, true);
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(refused, 200);
}

TEST(TokenizerFuzz, MutatedGgufFields) {
  std::mt19937_64 rng(20261202);
  for (int round = 0; round < 300; ++round) {
    GgufTokenizerFields fields = GgufFields();
    for (size_t n = 1 + rng() % 3; n > 0; --n) {
      const size_t at = rng() % fields.tokens.size();
      switch (rng() % 7) {
        case 0:
          fields.tokens[at] = fields.tokens[rng() % fields.tokens.size()];
          break;
        case 1:
          fields.tokens[at].push_back(static_cast<char>(rng() % 256));
          break;
        case 2:
          fields.token_types[rng() % fields.token_types.size()] = static_cast<int32_t>(rng() % 8);
          break;
        case 3:
          fields.merges.push_back(fields.tokens[at] + " " +
                                  fields.tokens[rng() % fields.tokens.size()]);
          break;
        case 4:
          fields.tokens.resize(at + 1);
          break;
        case 5:
          fields.bos_id = static_cast<int64_t>(rng());
          break;
        default:
          fields.tokens[at].clear();
      }
    }
    auto spec = SpecFromGgufMetadata(std::move(fields));
    if (!spec.ok()) continue;
    const auto made = Tokenizer::Create(*std::move(spec));
    if (made.ok()) {
      (*made)->Decode((*made)->Encode("he <s> \u00e9", {}), true);
    } else {
      EXPECT_THAT(std::string(made.status().message()), HasSubstr("m.gguf"));
    }
  }
}

}  // namespace
}  // namespace quire
