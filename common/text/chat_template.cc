#include "common/text/chat_template.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/text/chat_template_families.h"
#include "common/text/jinja_outline.h"
#include "common/text/unicode.h"

namespace quire {
namespace {

using Kind = JinjaStep::Kind;

std::string Sha256Hex(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  QUIRE_CHECK(EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), static_cast<size_t>(size)));
}

bool HasAll(std::string_view source, std::initializer_list<std::string_view> marks) {
  return std::all_of(marks.begin(), marks.end(), [source](std::string_view mark) {
    return source.find(mark) != std::string_view::npos;
  });
}

// Walks an outline step by step.
class Steps {
 public:
  explicit Steps(const std::vector<JinjaStep>& steps) : steps_(steps) {}
  bool Take(Kind kind, std::string_view text) {
    if (pos_ == steps_.size() || steps_[pos_].kind != kind || steps_[pos_].text != text)
      return false;
    ++pos_;
    return true;
  }
  std::optional<std::string> TakeText() {
    if (pos_ == steps_.size() || steps_[pos_].kind != Kind::kText) return std::nullopt;
    return steps_[pos_++].text;
  }
  bool AtEnd() const { return pos_ == steps_.size(); }

 private:
  const std::vector<JinjaStep>& steps_;
  size_t pos_ = 0;
};

// ChatML in its many texts: a prefix, a default system turn and |trim are optional.
std::unique_ptr<ChatTemplate> MatchChatMl(const std::vector<JinjaStep>& outline) {
  Steps steps(outline);
  std::string prefix = steps.TakeText().value_or("");
  if (steps.Take(Kind::kBlock, "if not add_generation_prompt is defined") &&
      !(steps.Take(Kind::kBlock, "set add_generation_prompt=false") &&
        steps.Take(Kind::kBlock, "endif"))) {
    return nullptr;
  }
  if (!steps.Take(Kind::kBlock, "for item in messages")) return nullptr;
  std::string default_system;
  if (steps.Take(Kind::kBlock, "if loop['first']and messages[0]['role']!='system'")) {
    default_system = steps.TakeText().value_or("");
    if (!steps.Take(Kind::kBlock, "endif")) return nullptr;
  }
  if (!steps.Take(Kind::kText, "<|im_start|>") || !steps.Take(Kind::kValue, "item['role']") ||
      !steps.Take(Kind::kText, "\n")) {
    return nullptr;
  }
  const bool trim = steps.Take(Kind::kValue, "item['content']|trim");
  if (!trim && !steps.Take(Kind::kValue, "item['content']")) return nullptr;
  if (!steps.Take(Kind::kText, "<|im_end|>\n") || !steps.Take(Kind::kBlock, "endfor") ||
      !steps.Take(Kind::kBlock, "if add_generation_prompt") ||
      !steps.Take(Kind::kText, "<|im_start|>assistant\n") || !steps.Take(Kind::kBlock, "endif") ||
      !steps.AtEnd()) {
    return nullptr;
  }
  const bool smollm = default_system.find("SmolLM") != std::string::npos;
  return NewChatMlTemplate(smollm ? "smollm2" : "chatml", std::move(prefix),
                           std::move(default_system), trim);
}

// The template of Llama 3 (3.0), with the prompt for the answer unconditional in its first release.
std::unique_ptr<ChatTemplate> MatchLlama3(const std::vector<JinjaStep>& outline) {
  Steps steps(outline);
  const bool renamed = steps.Take(Kind::kBlock, "set loop_messages=messages");
  if (!steps.Take(Kind::kBlock, renamed ? "for item in loop_messages" : "for item in messages") ||
      !steps.Take(Kind::kBlock,
                  "set content='<|start_header_id|>'+item['role']+'<|end_header_id|>\\n\\n'"
                  "+item['content']|trim+'<|eot_id|>'") ||
      !(steps.Take(Kind::kBlock, "if loop['index0']==0") ||
        steps.Take(Kind::kBlock, "if loop['first']")) ||
      !steps.Take(Kind::kBlock, "set content=bos_token+content") ||
      !steps.Take(Kind::kBlock, "endif") || !steps.Take(Kind::kValue, "content") ||
      !steps.Take(Kind::kBlock, "endfor")) {
    return nullptr;
  }
  const bool conditional = steps.Take(Kind::kBlock, "if add_generation_prompt");
  if (!steps.Take(Kind::kText, "<|start_header_id|>assistant<|end_header_id|>\n\n") ||
      (conditional && !steps.Take(Kind::kBlock, "endif")) || !steps.AtEnd()) {
    return nullptr;
  }
  return NewLlama3Template(Llama3Version::k3, !conditional);
}

// Long templates are compared by the digest of their outline: step for step, in any spelling.
std::string OutlineDigest(const std::vector<JinjaStep>& outline) {
  std::string all;
  for (const JinjaStep& step : outline) {
    absl::StrAppend(&all, static_cast<int>(step.kind), ":", step.text.size(), ":", step.text);
  }
  return Sha256Hex(all);
}

std::unique_ptr<ChatTemplate> MatchQwen3Of2507(const std::vector<JinjaStep>& outline) {
  const std::string digest = OutlineDigest(outline);
  if (digest == "f45a6988633384fe9bec9bf36b4d044aa539a5d91d2e7a16eefc069ea87f25c8") {
    return NewQwen3Template(Qwen3Release::kInstruct2507);
  }
  if (digest == "5273453e772a5f602c2d616c81b2ae305ecdf297848d2cd9861c7f49d40b14f7") {
    return NewQwen3Template(Qwen3Release::kThinking2507);
  }
  return nullptr;
}

// Qwen2.5, whose checkpoints differ in the default system prompt: it stands alone where there are
// tools, and as a whole turn where there are none. Both are emptied before the comparison.
std::unique_ptr<ChatTemplate> MatchQwen25(std::vector<JinjaStep> outline) {
  constexpr size_t kPromptStep = 5;
  if (outline.size() <= kPromptStep || outline[kPromptStep].kind != Kind::kText) return nullptr;
  std::string prompt = std::move(outline[kPromptStep].text);
  outline[kPromptStep].text.clear();
  const std::string turn = absl::StrCat("<|im_start|>system\n", prompt, "<|im_end|>\n");
  for (JinjaStep& step : outline) {
    if (step.kind == Kind::kText && step.text == turn) step.text.clear();
  }
  if (OutlineDigest(outline) !=
      "082d679810d43c27fba5510a5b642650a0369014a6b5a93bf1b956986e4ea28c") {
    return nullptr;
  }
  return NewQwen25Template(std::move(prompt));
}

absl::StatusOr<ChatInput::Call> ReadCall(const JsonValue& item, const std::string& name) {
  if (item.kind != JsonValue::Kind::kObject) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", PythonDumps(item).substr(0, 100), ", not an object"));
  }
  const JsonValue* function = item.Find("function");
  const bool wrapped = function != nullptr && function->kind == JsonValue::Kind::kObject &&
                       !function->members.empty();
  const JsonValue& call = wrapped ? *function : item;
  const std::string path = wrapped ? name + ".function" : name;
  const JsonValue* call_name = call.Find("name");
  if (call_name == nullptr || call_name->kind != JsonValue::Kind::kString) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".name is ",
                     call_name == nullptr ? "missing" : PythonDumps(*call_name).substr(0, 100),
                     ", not a string"));
  }
  const JsonValue* arguments = call.Find("arguments");
  if (arguments == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ".arguments is missing"));
  }
  return ChatInput::Call{call_name->text, *arguments};
}

absl::StatusOr<std::vector<ChatInput::Call>> ReadCalls(const std::string& json,
                                                       const std::string& name) {
  std::vector<ChatInput::Call> calls;
  if (json.empty()) return calls;
  ASSIGN_OR_RETURN(const JsonValue value, ParseJson(json, name));
  if (value.kind == JsonValue::Kind::kNull) return calls;
  if (value.kind != JsonValue::Kind::kArray) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", json.substr(0, 100), ", not an array"));
  }
  for (size_t i = 0; i < value.items.size(); ++i) {
    ASSIGN_OR_RETURN(ChatInput::Call call,
                     ReadCall(value.items[i], absl::StrCat(name, "[", i, "]")));
    calls.push_back(std::move(call));
  }
  return calls;
}

absl::Status CheckUtf8(const std::string& text, const std::string& field) {
  const size_t bad = FirstInvalidUtf8(text);
  if (bad == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is not UTF-8: byte ", bad, " is 0x",
                   absl::Hex(static_cast<unsigned char>(text[bad]), absl::kZeroPad2)));
}

}  // namespace

std::string_view PythonStrip(std::string_view text) {
  const auto is_space = [](char32_t c) {
    return ClassOf(c) == CharClass::kSpace || (c >= 0x1C && c <= 0x1F);
  };
  while (!text.empty()) {
    const Utf8Char c = DecodeValidUtf8(text.data());
    if (!is_space(c.value)) break;
    text.remove_prefix(static_cast<size_t>(c.size));
  }
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
    if (!is_space(DecodeValidUtf8(text.data() + begin).value)) break;
    text = text.substr(0, begin);
  }
  return text;
}

absl::StatusOr<ChatInput> ReadChatInput(const std::vector<ChatMessage>& messages,
                                        const ChatRenderOptions& options) {
  if (messages.empty()) return absl::InvalidArgumentError("messages is empty, at least 1");
  ChatInput input;
  input.add_generation_prompt = options.add_generation_prompt;
  input.messages.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::string name = absl::StrCat("messages[", i, "]");
    static constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant",
                                                               "tool"};
    if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".role is \"", absl::CHexEscape(message.role.substr(0, 60)),
                       "\"; known are system, user, assistant, tool"));
    }
    RETURN_IF_ERROR(CheckUtf8(message.content, name + ".content"));
    RETURN_IF_ERROR(CheckUtf8(message.reasoning_content, name + ".reasoning_content"));
    ChatInput::Message& read = input.messages.emplace_back();
    read.role = message.role;
    read.content = message.content;
    read.reasoning = message.reasoning_content;
    ASSIGN_OR_RETURN(read.calls, ReadCalls(message.tool_calls_json, name + ".tool_calls_json"));
    if (!read.calls.empty() && message.role != "assistant") {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ".tool_calls_json is set, but the role is ", message.role, ", not assistant"));
    }
  }
  if (!options.tools_json.empty()) {
    ASSIGN_OR_RETURN(JsonValue tools, ParseJson(options.tools_json, "tools_json"));
    if (tools.kind != JsonValue::Kind::kArray && tools.kind != JsonValue::Kind::kNull) {
      return absl::InvalidArgumentError(
          absl::StrCat("tools_json is ", options.tools_json.substr(0, 100), ", not an array"));
    }
    input.tools = std::move(tools.items);
  }
  input.args.kind = JsonValue::Kind::kObject;
  if (!options.template_args_json.empty()) {
    ASSIGN_OR_RETURN(input.args, ParseJson(options.template_args_json, "template_args"));
    if (input.args.kind != JsonValue::Kind::kObject) {
      return absl::InvalidArgumentError(absl::StrCat(
          "template_args is ", options.template_args_json.substr(0, 100), ", not an object"));
    }
  }
  return input;
}

absl::Status RefuseTools(const ChatInput& input, const char* family) {
  if (!input.tools.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tools_json has ", input.tools.size(),
                                                   " tools, but the chat template (", family,
                                                   ") has no place for tools"));
  }
  for (size_t i = 0; i < input.messages.size(); ++i) {
    if (!input.messages[i].calls.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "].tool_calls_json has ", input.messages[i].calls.size(),
                       " calls, but the chat template (", family, ") has no place for tool calls"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const std::string& source,
                                                                   const std::string& model) {
  const std::string digest = Sha256Hex(source);
  // The first release of Qwen3, whose renderings are the goldens of this folder.
  if (digest == "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5") {
    return NewQwen3Template(Qwen3Release::kFirst);
  }
  if (const auto outline = JinjaOutline(source); outline.has_value()) {
    if (auto chatml = MatchChatMl(*outline)) return chatml;
    if (auto llama3 = MatchLlama3(*outline)) return llama3;
    if (auto qwen25 = MatchQwen25(*outline)) return qwen25;
    if (auto qwen3 = MatchQwen3Of2507(*outline)) return qwen3;
  }
  // Later releases of Qwen3 word the same template differently; what makes it is this.
  if (HasAll(source, {"<|im_start|>", "<|im_end|>", "multi_step_tool", "last_query_index",
                      "reasoning_content", "enable_thinking", "'<think>\\n\\n</think>\\n\\n'",
                      "<tool_response>", "For each function call, return a json object"})) {
    return NewQwen3Template(Qwen3Release::kFirst);
  }
  if (HasAll(source, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                      "Cutting Knowledge Date: December 2023", "tools_in_user_message",
                      "date_string", "26 Jul 2024", "single tool-calls at once"})) {
    return NewLlama3Template(Llama3Version::k31, false);
  }
  return absl::UnimplementedError(absl::StrCat(
      "model \"", model, "\": its chat template (", source.size(), " bytes, SHA-256 ", digest,
      ") is not known; known families: qwen3, qwen3-instruct-2507, qwen3-thinking-2507, "
      "qwen2.5, chatml, smollm2, llama3"));
}

}  // namespace quire
