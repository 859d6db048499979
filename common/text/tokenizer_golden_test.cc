// Every golden of the real Qwen3 and cl100k tokenizers, both directions and streamed.
#include <gtest/gtest.h>

#include "common/text/detokenizer.h"
#include "common/text/text_test_data.h"
#include "common/text/tokenizer.h"

namespace quire {
namespace {

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip) {
  IncrementalDetokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Add(id);
  return text + detokenizer.Flush();
}

class TokenizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, AllRows) {
  const std::string folder = GetParam();
  const Tokenizer& tokenizer = test::RealTokenizer(folder);
  int rows = 0;
  for (const auto& row : test::ReadJsonLines(folder + "/golden.jsonl.xz")) {
    SCOPED_TRACE(testing::Message() << folder << " row " << row["id"] << " " << row["category"]);
    const auto ids = row["ids"].get<std::vector<TokenId>>();
    const std::string text = row.contains("bytes_hex")
                                 ? FromHex(row["bytes_hex"].get<std::string>())
                                 : row["text"].get<std::string>();
    EXPECT_EQ(tokenizer.Encode(text, {}), ids);
    EXPECT_EQ(tokenizer.Decode(ids, false), row["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer.Decode(ids, true), row["decoded_skip_special"].get<std::string>());
    EXPECT_EQ(Streamed(tokenizer, ids, false), row["decoded"].get<std::string>());
    EXPECT_EQ(Streamed(tokenizer, ids, true), row["decoded_skip_special"].get<std::string>());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(tokenizer.FindToken(row["tokens"][i].get<std::string>()), ids[i]);
    }
    ++rows;
  }
  EXPECT_EQ(rows, 209);
}

INSTANTIATE_TEST_SUITE_P(Real, TokenizerGolden,
                         testing::Values("tokenizer_qwen3", "tokenizer_cl100k"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST(TokenizerGolden, RealFilesSayWhatTheyAre) {
  const Tokenizer& qwen = test::RealTokenizer("tokenizer_qwen3");
  EXPECT_EQ(qwen.vocab_size(), 151669);
  EXPECT_EQ(qwen.eos_id(), 151645);
  EXPECT_EQ(qwen.bos_id(), std::nullopt);
  EXPECT_EQ(qwen.chat_template().size(), 4116u);
  EXPECT_TRUE(qwen.IsSpecial(151645));
  EXPECT_FALSE(qwen.IsSpecial(151667));  // <think>
  EXPECT_EQ(qwen.TokenBytes(220), " ");
  EXPECT_EQ(qwen.FindToken("<|im_end|>"), 151645);
  const Tokenizer& cl100k = test::RealTokenizer("tokenizer_cl100k");
  EXPECT_EQ(cl100k.vocab_size(), 100277);
  EXPECT_EQ(cl100k.TokenBytes(100256), "");  // a gap
}

}  // namespace
}  // namespace quire
