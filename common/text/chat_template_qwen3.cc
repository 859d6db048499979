// Qwen3: thinking, tools, tool results as a user's turn. Reasoning is kept only behind the last
// query of the user; before that it is cut, so that the rendering of turn n + 1 need not extend
// that of n. Of the releases of July 2025, Instruct knows no thinking and writes contents as they
// are, and Thinking opens every answer with <think>; neither reads enable_thinking.
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

void AppendCalls(const ChatInput::Message& message, bool after_content, std::string& out) {
  for (size_t i = 0; i < message.calls.size(); ++i) {
    const ChatInput::Call& call = message.calls[i];
    if (i > 0 || after_content) out += "\n";
    out.append("<tool_call>\n{\"name\": \"").append(call.name).append("\", \"arguments\": ");
    // Arguments that come as a string (as OpenAI clients send them) are JSON already.
    const bool is_text = call.arguments.kind == JsonValue::Kind::kString;
    out.append(is_text ? call.arguments.text : PythonDumps(call.arguments));
    out += "}\n</tool_call>";
  }
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
  AppendCalls(message, !content.empty(), out);
  out += "<|im_end|>\n";
}

class Qwen3Template final : public ChatTemplate {
 public:
  explicit Qwen3Template(Qwen3Release release) : release_(release) {}

  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     const ChatRenderOptions& options) const override {
    ASSIGN_OR_RETURN(const ChatInput input, ReadChatInput(messages, options));
    const size_t n = input.messages.size();
    std::string out;
    if (!input.tools.empty()) {
      out += "<|im_start|>system\n";
      if (input.messages[0].role == "system") out.append(input.messages[0].content).append("\n\n");
      AppendQwenTools(input, out);
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
      } else if (message.role == "assistant" && release_ == Qwen3Release::kInstruct2507) {
        out.append("<|im_start|>assistant\n").append(message.content);
        AppendCalls(message, !message.content.empty(), out);
        out += "<|im_end|>\n";
      } else if (message.role == "assistant") {
        AppendAssistant(message, i > last_query, i + 1 == n, out);
      } else if (message.role == "tool") {
        AppendQwenToolResult(input, i, out);
      }
    }
    if (input.add_generation_prompt) {
      out += "<|im_start|>assistant\n";
      const JsonValue* thinking = input.args.Find("enable_thinking");
      if (release_ == Qwen3Release::kThinking2507) {
        out += "<think>\n";
      } else if (release_ == Qwen3Release::kFirst && thinking != nullptr &&
                 thinking->kind == JsonValue::Kind::kFalse) {
        out += "<think>\n\n</think>\n\n";
      }
    }
    return out;
  }

  const char* family() const override {
    switch (release_) {
      case Qwen3Release::kInstruct2507:
        return "qwen3-instruct-2507";
      case Qwen3Release::kThinking2507:
        return "qwen3-thinking-2507";
      case Qwen3Release::kFirst:
        break;
    }
    return "qwen3";
  }

 private:
  const Qwen3Release release_;
};

}  // namespace

std::unique_ptr<ChatTemplate> NewQwen3Template(Qwen3Release release) {
  return std::make_unique<Qwen3Template>(release);
}

}  // namespace quire
