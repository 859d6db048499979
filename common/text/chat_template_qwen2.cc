// Qwen2.5: ChatML with a default system turn, tools, and tool results as a user's turn. Qwen2
// itself is plain ChatML with a default system turn. Also what the families of Qwen write alike.
#include "common/status_macros.h"
#include "common/text/chat_template_families.h"

namespace quire {
namespace {

class Qwen25Template final : public ChatTemplate {
 public:
  explicit Qwen25Template(std::string default_system)
      : default_system_(std::move(default_system)) {}

  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     const ChatRenderOptions& options) const override {
    ASSIGN_OR_RETURN(const ChatInput input, ReadChatInput(messages, options));
    const bool has_system = input.messages[0].role == "system";
    std::string out = "<|im_start|>system\n";
    out.append(has_system ? input.messages[0].content : default_system_);
    if (input.tools.empty()) {
      out += "<|im_end|>\n";
    } else {
      out += "\n\n";
      AppendQwenTools(input, out);
    }
    for (size_t i = has_system ? 1 : 0; i < input.messages.size(); ++i) {
      const ChatInput::Message& message = input.messages[i];
      if (message.role == "tool") {
        AppendQwenToolResult(input, i, out);
        continue;
      }
      out.append("<|im_start|>").append(message.role);
      if (message.calls.empty() || !message.content.empty()) {
        out.append("\n").append(message.content);
      }
      for (const ChatInput::Call& call : message.calls) {
        out.append("\n<tool_call>\n{\"name\": \"").append(call.name).append("\", \"arguments\": ");
        // Arguments that come as a string are quoted once more: so does the template.
        out.append(PythonDumps(call.arguments)).append("}\n</tool_call>");
      }
      out += "<|im_end|>\n";
    }
    if (input.add_generation_prompt) out += "<|im_start|>assistant\n";
    return out;
  }

  const char* family() const override { return "qwen2.5"; }

 private:
  const std::string default_system_;
};

}  // namespace

void AppendQwenTools(const ChatInput& input, std::string& out) {
  out +=
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
      "provided with function signatures within <tools></tools> XML tags:\n<tools>";
  for (const JsonValue& tool : input.tools) out.append("\n").append(PythonDumps(tool));
  out +=
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
      "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
      "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";
}

void AppendQwenToolResult(const ChatInput& input, size_t i, std::string& out) {
  const std::vector<ChatInput::Message>& messages = input.messages;
  if (i == 0 || messages[i - 1].role != "tool") out += "<|im_start|>user";
  out.append("\n<tool_response>\n").append(messages[i].content).append("\n</tool_response>");
  if (i + 1 == messages.size() || messages[i + 1].role != "tool") out += "<|im_end|>\n";
}

std::unique_ptr<ChatTemplate> NewQwen25Template(std::string default_system) {
  return std::make_unique<Qwen25Template>(std::move(default_system));
}

}  // namespace quire
