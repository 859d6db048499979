#include "common/status_macros.h"
#include "common/text/chat_template_families.h"

namespace quire {
namespace {

class ChatMlTemplate final : public ChatTemplate {
 public:
  ChatMlTemplate(const char* family, std::string prefix, std::string default_system,
                 bool trim_content)
      : family_(family),
        prefix_(std::move(prefix)),
        default_system_(std::move(default_system)),
        trim_content_(trim_content) {}

  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     const ChatRenderOptions& options) const override {
    ASSIGN_OR_RETURN(const ChatInput input, ReadChatInput(messages, options));
    RETURN_IF_ERROR(RefuseTools(input, family_));
    std::string out = prefix_;
    if (input.messages[0].role != "system") out += default_system_;
    for (const ChatInput::Message& message : input.messages) {
      out.append("<|im_start|>").append(message.role).append("\n");
      out.append(trim_content_ ? PythonStrip(message.content) : message.content);
      out.append("<|im_end|>\n");
    }
    if (input.add_generation_prompt) out += "<|im_start|>assistant\n";
    return out;
  }

  const char* family() const override { return family_; }

 private:
  const char* const family_;
  const std::string prefix_, default_system_;
  const bool trim_content_;
};

}  // namespace

std::unique_ptr<ChatTemplate> NewChatMlTemplate(const char* family, std::string prefix,
                                                std::string default_system, bool trim_content) {
  return std::make_unique<ChatMlTemplate>(family, std::move(prefix), std::move(default_system),
                                          trim_content);
}

}  // namespace quire
