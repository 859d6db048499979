// The renderers behind ChatTemplate, one a family, and what they share. Internal to this folder.
#ifndef QUIRE_COMMON_TEXT_CHAT_TEMPLATE_FAMILIES_H_
#define QUIRE_COMMON_TEXT_CHAT_TEMPLATE_FAMILIES_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/chat_template.h"
#include "common/text/python_json.h"

namespace quire {

// What every renderer needs of the input, checked and parsed.
struct ChatInput {
  struct Call {
    std::string name;
    JsonValue arguments;
  };
  struct Message {
    std::string_view role, content, reasoning;
    std::vector<Call> calls;
  };
  std::vector<Message> messages;  // at least one; views into what was given
  std::vector<JsonValue> tools;
  JsonValue args;  // the template's own arguments, an object
  bool add_generation_prompt = true;
};

// Errors: INVALID_ARGUMENT naming the message's index, field and value.
absl::StatusOr<ChatInput> ReadChatInput(const std::vector<ChatMessage>& messages,
                                        const ChatRenderOptions& options);

// INVALID_ARGUMENT for tools or calls that the template of `family` has no words for; leaving them
// out in silence, as the template would, is no answer a client can notice.
absl::Status RefuseTools(const ChatInput& input, const char* family);

// str.strip() of Python: what the filter `trim` does.
std::string_view PythonStrip(std::string_view text);

// What the families of Qwen write alike. The section on tools, up to the end of the system's turn.
void AppendQwenTools(const ChatInput& input, std::string& out);
// Message `i`, the result of a tool: neighbouring results share one turn of the user.
void AppendQwenToolResult(const ChatInput& input, size_t i, std::string& out);

enum class Qwen3Release { kFirst, kInstruct2507, kThinking2507 };
std::unique_ptr<ChatTemplate> NewQwen3Template(Qwen3Release release);
// `default_system` is the content of the system's turn if the first message is not the system's.
std::unique_ptr<ChatTemplate> NewQwen25Template(std::string default_system);
// "<|im_start|>role\ncontent<|im_end|>\n". `prefix` stands before all; `default_system`, a whole
// rendered turn, if the first message is not the system's.
std::unique_ptr<ChatTemplate> NewChatMlTemplate(const char* family, std::string prefix,
                                                std::string default_system, bool trim_content);
enum class Llama3Version {
  k3,   // no system turn of its own
  k31,  // tools, and a line with the date, "26 Jul 2024" unless date_string says otherwise. 3.2
        // too: its template would take today's date where it can, which would change with the day
};
std::unique_ptr<ChatTemplate> NewLlama3Template(Llama3Version version, bool always_prompt);

}  // namespace quire

#endif  // QUIRE_COMMON_TEXT_CHAT_TEMPLATE_FAMILIES_H_
