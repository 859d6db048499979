// Qwen3: thinking, tools, tool results as a user's turn. Reasoning is kept only behind the last
// query of the user; before that it is cut, so that the rendering of turn n + 1 need not extend
// that of n.
#include <algorithm>

#include "common/status_macros.h"
#include "common/text/chat_template_families.h"

namespace quire {
namespace {

constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kThinkBegin = "<think>";

std::string_view StripLeft(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view StripRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);  // npos + 1 = 0
}

// A query is what a user writes; the results of tools come as a user's turn too.
bool IsQuery(const ChatInput::Message& message) {
  return message.role == "user" && !(message.content.starts_with("<tool_response>") &&
                                     message.content.ends_with("</tool_response>"));
}

void AppendTools(const ChatInput& input, std::string& out) {
  out += "<|im_start|>system\n";
  if (input.messages[0].role == "system") out.append(input.messages[0].content).append("\n\n");
  out +=
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
      "provided with function signatures within <tools></tools> XML tags:\n<tools>";
  for (const JsonValue& tool : input.tools) out.append("\n").append(PythonDumps(tool));
  out +=
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
      "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
      "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";
}

void AppendAssistant(const ChatInput::Message& message, bool after_last_query, bool is_last,
                     std::string& out) {
  std::string_view content = message.content;
  std::string_view reasoning = message.reasoning;
  if (const size_t first_end = content.find(kThinkEnd);
      reasoning.empty() && first_end != std::string_view::npos) {
    reasoning = StripRight(content.substr(0, first_end));
    if (const size_t begin = reasoning.rfind(kThinkBegin); begin != std::string_view::npos) {
      reasoning.remove_prefix(begin + kThinkBegin.size());
    }
    reasoning = StripLeft(reasoning);
    content = StripLeft(content.substr(content.rfind(kThinkEnd) + kThinkEnd.size()));
  }
  out += "<|im_start|>assistant\n";
  if (after_last_query && (is_last || !reasoning.empty())) {
    out.append("<think>\n").append(StripRight(StripLeft(reasoning))).append("\n</think>\n\n");
    out.append(StripLeft(content));
  } else {
    out.append(content);
  }
  for (size_t i = 0; i < message.calls.size(); ++i) {
    const ChatInput::Call& call = message.calls[i];
    if (i > 0 || !content.empty()) out += "\n";
    out.append("<tool_call>\n{\"name\": \"").append(call.name).append("\", \"arguments\": ");
    // Arguments that come as a string (as OpenAI clients send them) are JSON already.
    const bool is_text = call.arguments.kind == JsonValue::Kind::kString;
    out.append(is_text ? call.arguments.text : PythonDumps(call.arguments));
    out += "}\n</tool_call>";
  }
  out += "<|im_end|>\n";
}

class Qwen3Template final : public ChatTemplate {
 public:
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     const ChatRenderOptions& options) const override {
    ASSIGN_OR_RETURN(const ChatInput input, ReadChatInput(messages, options));
    const size_t n = input.messages.size();
    std::string out;
    if (!input.tools.empty()) {
      AppendTools(input, out);
    } else if (input.messages[0].role == "system") {
      out.append("<|im_start|>system\n").append(input.messages[0].content).append("<|im_end|>\n");
    }
    size_t last_query = n - 1;
    for (size_t i = n; i-- > 0;) {
      if (IsQuery(input.messages[i])) {
        last_query = i;
        break;
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const ChatInput::Message& message = input.messages[i];
      if (message.role == "user" || (message.role == "system" && i > 0)) {
        out.append("<|im_start|>").append(message.role).append("\n").append(message.content);
        out += "<|im_end|>\n";
      } else if (message.role == "assistant") {
        AppendAssistant(message, i > last_query, i + 1 == n, out);
      } else if (message.role == "tool") {
        if (i == 0 || input.messages[i - 1].role != "tool") out += "<|im_start|>user";
        out.append("\n<tool_response>\n").append(message.content).append("\n</tool_response>");
        if (i + 1 == n || input.messages[i + 1].role != "tool") out += "<|im_end|>\n";
      }
    }
    if (input.add_generation_prompt) {
      out += "<|im_start|>assistant\n";
      const JsonValue* thinking = input.args.Find("enable_thinking");
      if (thinking != nullptr && thinking->kind == JsonValue::Kind::kFalse) {
        out += "<think>\n\n</think>\n\n";
      }
    }
    return out;
  }

  const char* family() const override { return "qwen3"; }
};

}  // namespace

std::unique_ptr<ChatTemplate> NewQwen3Template() { return std::make_unique<Qwen3Template>(); }

}  // namespace quire
