// Chat templates, rendered natively: no Jinja interpreter runs on a model's file. The template that
// a model brings is recognised by its SHA-256 digest, its statements or its family's marks; an
// unknown one is refused by name.
#ifndef QUIRE_COMMON_TEXT_CHAT_TEMPLATE_H_
#define QUIRE_COMMON_TEXT_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"

namespace quire {

struct ChatMessage {
  std::string role;
  std::string content;
  std::string name;
  std::string tool_calls_json;    // JSON array as OpenAI clients send it, or ""
  std::string reasoning_content;  // "" = none
  bool cacheable = false;
};

struct ChatRenderOptions {
  std::string tools_json;  // JSON array, or "" = none
  bool add_generation_prompt = true;
  // The template's own arguments as a JSON object, e.g. {"enable_thinking": false}; "" = none.
  std::string template_args_json;
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // `source` is the Jinja text of the model, `model` its name for messages.
  // Errors: UNIMPLEMENTED naming the model and the known families.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const std::string& source,
                                                              const std::string& model);

  // Errors: INVALID_ARGUMENT naming the message's index, field and value.
  virtual absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                             const ChatRenderOptions& options) const = 0;
  // "qwen3", "qwen3-instruct-2507", "qwen3-thinking-2507", "qwen2.5", "chatml" (Qwen2 too),
  // "smollm2", "llama3".
  virtual const char* family() const = 0;
};

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_CHAT_TEMPLATE_H_
