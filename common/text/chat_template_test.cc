#include "common/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/text/python_json.h"
#include "common/text/text_test_data.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
    "}}{% endif %}";
constexpr char kSmolLm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] "
    "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}";
constexpr char kLlama3[] =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
    "trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ "
    "content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
// Not the template, only what it is recognised by.
constexpr char kLlama31Marks[] =
    "<|start_header_id|> <|end_header_id|> <|eot_id|> Cutting Knowledge Date: December 2023 "
    "tools_in_user_message date_string 26 Jul 2024 This model only supports single tool-calls at "
    "once!";

std::unique_ptr<ChatTemplate> Make(const std::string& source) {
  auto made = ChatTemplate::Create(source, "a model");
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

std::string ReadGolden(const std::string& name) {
  std::ifstream file(QUIRE_SOURCE_DIR "/tests/golden/chat_templates/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// `source` with the one place that reads `from` changed to `to`.
std::string With(std::string source, const std::string& from, const std::string& to) {
  const size_t at = source.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? source : source.replace(at, from.size(), to);
}

ChatMessage Message(const std::string& role, const std::string& content) {
  ChatMessage message;
  message.role = role;
  message.content = content;
  return message;
}

std::string Rendered(const ChatTemplate& chat_template, const std::vector<ChatMessage>& messages,
                     const ChatRenderOptions& options = {}) {
  auto text = chat_template.Render(messages, options);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

std::string RenderError(const ChatTemplate& chat_template, const std::vector<ChatMessage>& messages,
                        const ChatRenderOptions& options = {}) {
  const auto text = chat_template.Render(messages, options);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
  return std::string(text.status().message());
}

TEST(ChatTemplate, AllQwen3Goldens) {
  const Tokenizer& tokenizer = test::RealTokenizer("tokenizer_qwen3");
  const auto qwen3 = Make(tokenizer.chat_template());
  ASSERT_NE(qwen3, nullptr);
  EXPECT_STREQ(qwen3->family(), "qwen3");
  int renderings = 0;
  for (const auto& row : test::ReadJsonLines("tokenizer_qwen3/chat_golden.jsonl.xz")) {
    std::vector<ChatMessage> messages;
    for (const auto& m : row["messages"]) {
      ChatMessage message = Message(m["role"], m["content"]);
      if (m.contains("tool_calls")) message.tool_calls_json = m["tool_calls"].dump();
      if (m.contains("reasoning_content")) message.reasoning_content = m["reasoning_content"];
      messages.push_back(message);
    }
    for (const auto& want : row["renderings"]) {
      SCOPED_TRACE(testing::Message() << row["name"] << " thinking " << want["enable_thinking"]
                                      << " prompt " << want["add_generation_prompt"]);
      ChatRenderOptions options;
      if (!row["tools"].is_null()) options.tools_json = row["tools"].dump();
      options.add_generation_prompt = want["add_generation_prompt"];
      if (!want["enable_thinking"].is_null()) {
        options.template_args_json =
            std::string("{\"enable_thinking\": ") + want["enable_thinking"].dump() + "}";
      }
      const std::string text = Rendered(*qwen3, messages, options);
      EXPECT_EQ(text, want["text"].get<std::string>());
      EXPECT_EQ(tokenizer.Encode(text, {}), want["ids"].get<std::vector<TokenId>>());
      ++renderings;
    }
  }
  EXPECT_EQ(renderings, 44);
}

TEST(ChatTemplate, LaterTextsOfQwen3AreRecognisedByTheirMarks) {
  std::string source = test::RealTokenizer("tokenizer_qwen3").chat_template();
  const std::string from = "message.reasoning_content is defined and ";
  source.replace(source.find(from), from.size(), "message.reasoning_content is string and ");
  const auto qwen3 = Make(source);
  ASSERT_NE(qwen3, nullptr);
  EXPECT_STREQ(qwen3->family(), "qwen3");
}

struct QwenRelease {
  const char* file;
  const char* family;
};
constexpr QwenRelease kQwenReleases[] = {{"qwen2_5", "qwen2.5"},
                                         {"qwen3_instruct_2507", "qwen3-instruct-2507"},
                                         {"qwen3_thinking_2507", "qwen3-thinking-2507"}};

TEST(ChatTemplate, GoldensOfQwen25AndQwen3Of2507) {
  std::istringstream lines(ReadGolden("renderings.jsonl"));
  std::vector<nlohmann::ordered_json> rows;
  for (std::string line; std::getline(lines, line);) {
    rows.push_back(nlohmann::ordered_json::parse(line));
  }
  int renderings = 0;
  for (const QwenRelease& release : kQwenReleases) {
    const auto made = Make(ReadGolden(std::string(release.file) + ".jinja"));
    ASSERT_NE(made, nullptr);
    EXPECT_STREQ(made->family(), release.family);
    for (const auto& row : rows) {
      std::vector<ChatMessage> messages;
      for (const auto& m : row["messages"]) {
        ChatMessage message = Message(m["role"], m["content"]);
        if (m.contains("tool_calls")) message.tool_calls_json = m["tool_calls"].dump();
        if (m.contains("reasoning_content")) message.reasoning_content = m["reasoning_content"];
        messages.push_back(message);
      }
      ChatRenderOptions options;
      if (!row["tools"].is_null()) options.tools_json = row["tools"].dump();
      options.template_args_json = row["args"].dump();
      for (const bool prompt : {false, true}) {
        SCOPED_TRACE(testing::Message() << release.file << " " << row["name"] << " tools "
                                        << !row["tools"].is_null() << " prompt " << prompt);
        options.add_generation_prompt = prompt;
        EXPECT_EQ(Rendered(*made, messages, options),
                  row["want"][release.file][prompt ? 1 : 0].get<std::string>());
        ++renderings;
      }
    }
  }
  EXPECT_EQ(renderings, 150);
}

TEST(ChatTemplate, QwenTemplatesInOtherSpellings) {
  for (const QwenRelease& release : kQwenReleases) {
    SCOPED_TRACE(release.file);
    std::string source = ReadGolden(std::string(release.file) + ".jinja");
    source = With(source, "message.role == \"user\"", "message['role']=='user'");
    source = With(source, "{%- endfor %}\n", "{%- endfor -%}");
    source = source.ends_with('\n') ? source.substr(0, source.size() - 1) : source + "\n";
    const auto made = Make(source);
    ASSERT_NE(made, nullptr);
    EXPECT_STREQ(made->family(), release.family);
  }
}

TEST(ChatTemplate, QwenTemplatesWithOneThingChangedAreRefused) {
  const auto refused = [](const std::string& source) {
    return ChatTemplate::Create(source, "m").status().code() == absl::StatusCode::kUnimplemented;
  };
  for (const QwenRelease& release : kQwenReleases) {
    SCOPED_TRACE(release.file);
    const std::string source = ReadGolden(std::string(release.file) + ".jinja");
    EXPECT_TRUE(refused(With(source, "# Tools", "# Functions")));
    EXPECT_TRUE(refused(With(source, "and not loop.first", "and loop.first")));
    EXPECT_TRUE(refused(With(source, "| tojson", "")));
    EXPECT_TRUE(refused(With(source, "</tool_response>' }}", "</tool_response>\\n' }}")));
    EXPECT_TRUE(refused(source + "\nmore"));
    EXPECT_TRUE(refused(source.substr(0, source.size() / 2)));
  }
  // The default prompt has to be the same in both of its places.
  EXPECT_TRUE(refused(With(ReadGolden("qwen2_5.jinja"), "'You are Qwen", "'You were Qwen")));
}

TEST(ChatTemplate, Qwen25TakesTheDefaultSystemPromptOfItsTemplate) {
  std::string source = ReadGolden("qwen2_5.jinja");
  for (int i = 0; i < 2; ++i) source = With(source, "Qwen, created by Alibaba Cloud. You are ", "");
  const auto made = Make(source);
  ASSERT_NE(made, nullptr);
  EXPECT_STREQ(made->family(), "qwen2.5");
  EXPECT_EQ(Rendered(*made, {Message("user", "Hi")}),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            "Hi<|im_end|>\n<|im_start|>assistant\n");
  ChatRenderOptions options;
  options.tools_json = "[{}]";
  EXPECT_THAT(Rendered(*made, {Message("user", "Hi")}, options),
              testing::StartsWith("<|im_start|>system\nYou are a helpful assistant.\n\n# Tools\n"));
}

TEST(ChatTemplate, Qwen2IsChatMlWithADefaultSystemTurn) {
  const std::string source =
      With(kSmolLm2, "a helpful AI assistant named SmolLM, trained by Hugging Face",
           "a helpful assistant.");
  // In a model's JSON the line ends are written either way.
  for (const std::string& spelling : {source, With(source, "system\\n", "system\n")}) {
    const auto qwen2 = Make(spelling);
    ASSERT_NE(qwen2, nullptr);
    EXPECT_STREQ(qwen2->family(), "chatml");
    EXPECT_EQ(Rendered(*qwen2, {Message("user", "Hi")}),
              "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
              "Hi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(Rendered(*qwen2, {Message("system", "S"), Message("user", "Hi")}),
              "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
              "<|im_start|>assistant\n");
  }
}

TEST(ChatTemplate, ChatMlInItsSpellings) {
  const std::string want = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  const std::string quoted_fields =
      "{%- for m in messages %}\n    {{- \"<|im_start|>\" + m.role + \"\\n\" + m.content + "
      "\"<|im_end|>\\n\" }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- "
      "'<|im_start|>assistant\\n' }}\n{%- endif %}";
  const std::string several_outputs =
      "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% "
      "endif "
      "%}{% for message in messages %}{{'<|im_start|>'}}{{message['role']}}{{'\\n' + "
      "message['content']}}{{'<|im_end|>'}}{{'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|im_start|>' }}assistant{{ '\\n' }}{% endif %}";
  for (const std::string& source : {std::string(kChatMl), quoted_fields, several_outputs}) {
    SCOPED_TRACE(source);
    const auto chatml = Make(source);
    ASSERT_NE(chatml, nullptr);
    EXPECT_STREQ(chatml->family(), "chatml");
    EXPECT_EQ(Rendered(*chatml, {Message("user", "Hi")}), want);
  }
  const auto with_bos = Make("{{ '<|endoftext|>' }}" + std::string(kChatMl));
  ASSERT_NE(with_bos, nullptr);
  EXPECT_EQ(Rendered(*with_bos, {Message("user", "Hi")}), "<|endoftext|>" + want);
}

TEST(ChatTemplate, SmolLm2HasADefaultSystemTurn) {
  const auto smollm2 = Make(kSmolLm2);
  ASSERT_NE(smollm2, nullptr);
  EXPECT_STREQ(smollm2->family(), "smollm2");
  EXPECT_EQ(Rendered(*smollm2, {Message("user", "Hi")}),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  ChatRenderOptions options;
  options.add_generation_prompt = false;
  EXPECT_EQ(Rendered(*smollm2, {Message("system", ""), Message("user", " Hi\n")}, options),
            "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n");
}

TEST(ChatTemplate, TextThatIsNoTemplateOfOursIsRefusedByName) {
  // One thing changed in each: an engine that goes by marks alone would render them wrong.
  std::vector<std::string> unknown = {"", "{{ messages }}", "{% for", "{% for m in messages %}",
                                      "[INST] {{ messages[0].content }} [/INST]"};
  unknown.push_back(With(kChatMl, "+ '<|im_end|>' +", "+ eos_token +"));
  unknown.push_back(With(kChatMl, "messages %}", "messages[1:] %}"));
  unknown.push_back(With(kChatMl, "assistant\\n", "model\\n"));
  unknown.push_back(With(kSmolLm2, "loop.first and", "loop.last and"));
  unknown.push_back(With(kLlama3, "| trim", ""));
  for (const std::string& source : unknown) {
    SCOPED_TRACE(source);
    const auto made = ChatTemplate::Create(source, "odd/model-7b");
    ASSERT_EQ(made.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(made.status().message()),
                testing::AllOf(HasSubstr("odd/model-7b"), HasSubstr("qwen3"), HasSubstr("chatml"),
                               HasSubstr("smollm2"), HasSubstr("llama3")));
  }
}

TEST(ChatTemplate, Llama3) {
  const auto llama3 = Make(kLlama3);
  ASSERT_NE(llama3, nullptr);
  EXPECT_STREQ(llama3->family(), "llama3");
  EXPECT_EQ(Rendered(*llama3, {Message("system", " Be brief. \n"), Message("user", "\u00a0Hi\t"),
                               Message("assistant", "Hello"), Message("user", "Bye")}),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
            "<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye"
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  ChatRenderOptions options;
  options.tools_json = "[{\"name\": \"f\"}]";
  EXPECT_THAT(RenderError(*llama3, {Message("user", "Hi")}, options), HasSubstr("tools_json"));
}

TEST(ChatTemplate, Llama31HasDatesAndTools) {
  const auto llama31 = Make(kLlama31Marks);
  ASSERT_NE(llama31, nullptr);
  const std::string head =
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
      "December 2023\nToday Date: ";
  EXPECT_EQ(Rendered(*llama31, {Message("user", "Hi")}),
            head +
                "26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
                "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  ChatRenderOptions options;
  options.template_args_json = "{\"date_string\": \"01 Dec 2026\"}";
  EXPECT_EQ(Rendered(*llama31, {Message("system", "S "), Message("user", "Hi")}, options),
            head +
                "01 Dec 2026\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
                "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");

  options.template_args_json = "";
  options.add_generation_prompt = false;
  options.tools_json = "[{\"name\": \"f\", \"parameters\": {\"x\": [], \"y\": [1, {}]}}]";
  ChatMessage call = Message("assistant", "ignored by the template");
  call.tool_calls_json = "[{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]";
  EXPECT_EQ(
      Rendered(*llama31, {Message("user", " Hi "), call, Message("tool", "\"4\" \u00e9\n")},
               options),
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: "
      "ipython\nCutting "
      "Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user"
      "<|end_header_id|>\n\nGiven the following functions, please respond with a JSON for a "
      "function "
      "call with its proper arguments that best answers the given prompt.\n\nRespond in the format "
      "{\"name\": function name, \"parameters\": dictionary of argument name and its value}.Do not "
      "use variables.\n\n{\n    \"name\": \"f\",\n    \"parameters\": {\n        \"x\": [],\n      "
      "  "
      "\"y\": [\n            1,\n            {}\n        ]\n    }\n}\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"f\", \"parameters\": {\"x\": "
      "1}}"
      "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"\\\"4\\\" \u00e9\\n\"<|eot_id|>");
  EXPECT_THAT(RenderError(*llama31, {Message("system", "only")}, options), HasSubstr("tools_json"));
  call.tool_calls_json =
      "[{\"name\": \"a\", \"arguments\": 1}, {\"name\": \"b\", \"arguments\": 1}]";
  EXPECT_THAT(RenderError(*llama31, {Message("user", "x"), call}, options),
              HasSubstr("messages[1].tool_calls_json has 2 calls"));
  options.template_args_json = "{\"builtin_tools\": [\"brave_search\"]}";
  const auto refused = llama31->Render({Message("user", "x")}, options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("builtin_tools"));
}

TEST(ChatTemplate, BadInputIsNamed) {
  const auto qwen3 = Make(test::RealTokenizer("tokenizer_qwen3").chat_template());
  const auto chatml = Make(kChatMl);
  ASSERT_NE(qwen3, nullptr);
  ASSERT_NE(chatml, nullptr);
  const ChatMessage user = Message("user", "Hi");
  EXPECT_THAT(RenderError(*qwen3, {}), HasSubstr("messages is empty"));
  EXPECT_THAT(RenderError(*qwen3, {user, Message("wizard", "x")}),
              testing::AllOf(HasSubstr("messages[1].role"), HasSubstr("wizard")));
  EXPECT_THAT(
      RenderError(*qwen3, {Message("user", "ab\xff")}),
      testing::AllOf(HasSubstr("messages[0].content"), HasSubstr("byte 2"), HasSubstr("0xff")));
  const auto with_calls = [](const std::string& json) {
    ChatMessage message = Message("assistant", "");
    message.tool_calls_json = json;
    return message;
  };
  struct Case {
    const char* calls;
    const char* named;
  };
  for (const Case& c : {Case{"{}", "messages[1].tool_calls_json is {}"},
                        Case{"[", "messages[1].tool_calls_json is no JSON"},
                        Case{"[1]", "messages[1].tool_calls_json[0] is 1"},
                        Case{"[{\"name\": \"f\"}]", "tool_calls_json[0].arguments is missing"},
                        Case{"[{\"function\": {\"name\": 3, \"arguments\": {}}}]",
                             "tool_calls_json[0].function.name is 3"}}) {
    EXPECT_THAT(RenderError(*qwen3, {user, with_calls(c.calls)}), HasSubstr(c.named));
  }
  EXPECT_THAT(RenderError(*chatml, {user, with_calls("[{\"name\": \"f\", \"arguments\": {}}]")}),
              HasSubstr("messages[1].tool_calls_json"));
  ChatRenderOptions options;
  options.tools_json = "{\"a\": 1}";
  EXPECT_THAT(RenderError(*qwen3, {user}, options), HasSubstr("tools_json is {\"a\": 1}"));
  options.tools_json = std::string(1000, '[');
  EXPECT_THAT(RenderError(*qwen3, {user}, options), HasSubstr("200 levels"));
  options.tools_json = "[{}]";
  EXPECT_THAT(RenderError(*chatml, {user}, options), HasSubstr("tools_json"));
  options.tools_json = "[]";  // none
  options.template_args_json = "[1]";
  EXPECT_THAT(RenderError(*chatml, {user}, options), HasSubstr("template_args is [1]"));
}

TEST(PythonJson, AsJsonDumpsWritesIt) {
  struct Case {
    const char* json;
    const char* want;
  };
  constexpr Case kCases[] = {
      {"{\"b\":1,\"a\":[1,2],\"b\":2}", "{\"b\": 2, \"a\": [1, 2]}"},
      {"[ ]", "[]"},
      {"{ }", "{}"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1e5", "100000.0"},
      {"1E16", "1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1234567890123456.5", "1234567890123456.5"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"5e-324", "5e-324"},
      {"1e-400", "0.0"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"100000000000000000000000000", "100000000000000000000000000"},
      {"0.1", "0.1"},
      {"1.0", "1.0"},
      {"2.50", "2.5"},
      {"\"\\u00e9\\u2028\\/<>&'\\ud83d\\ude42\"", "\"\u00e9\u2028/<>&'\U0001f642\""},
      {"\"\\u0001\\b\\f\\n\\r\\t\\\"\\\\\\u007f\"", "\"\\u0001\\b\\f\\n\\r\\t\\\"\\\\\x7f\""},
      {" true ", "true"},
      {"[false,null]", "[false, null]"},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.json);
    const auto value = ParseJson(c.json, "field");
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(PythonDumps(*value), c.want);
  }
  for (const char* bad :
       {"",       "[",       "[1,]",        "{1:2}",       "{\"a\" 1}",   "01",
        "1.",     "1e",      "+1",          ".5",          "NaN",         "Infinity",
        "1e400",  "\"\\x\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\u12g4\"", "\"a",
        "\"\n\"", "tru",     "1 2",         "\"\xff\""}) {
    SCOPED_TRACE(bad);
    const auto value = ParseJson(bad, "the_field");
    ASSERT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(value.status().message()), HasSubstr("the_field is no JSON"));
  }
}

}  // namespace
}  // namespace quire
