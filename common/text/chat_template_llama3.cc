// Llama 3: headers around each role, contents stripped. From 3.1 on a system turn with dates that
// is always there, and tools named in the first user turn.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/chat_template_families.h"

namespace quire {
namespace {

constexpr const char* kFormat =
    "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name "
    "and "
    "its value}.Do not use variables.\n\n";

void AppendHeader(std::string_view role, std::string& out) {
  out.append("<|start_header_id|>").append(role).append("<|end_header_id|>\n\n");
}

void AppendToolList(const ChatInput& input, std::string& out) {
  for (const JsonValue& tool : input.tools) out.append(PythonDumps(tool, 4)).append("\n\n");
}

// The arguments that the template of 3.1 reads. Errors: UNIMPLEMENTED, INVALID_ARGUMENT.
struct Llama31Args {
  std::string date = "26 Jul 2024";
  bool tools_in_user_message = true;
};
absl::StatusOr<Llama31Args> ReadArgs(const JsonValue& args) {
  Llama31Args read;
  for (const char* key : {"custom_tools", "builtin_tools"}) {
    if (args.Find(key) != nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("template_args.", key,
                       " is not supported with the chat template (llama3); tools go "
                       "into tools_json"));
    }
  }
  if (const JsonValue* date = args.Find("date_string"); date != nullptr) {
    if (date->kind != JsonValue::Kind::kString) {
      return absl::InvalidArgumentError(absl::StrCat(
          "template_args.date_string is ", PythonDumps(*date).substr(0, 100), ", not a string"));
    }
    read.date = date->text;
  }
  if (const JsonValue* flag = args.Find("tools_in_user_message"); flag != nullptr) {
    if (flag->kind != JsonValue::Kind::kTrue && flag->kind != JsonValue::Kind::kFalse) {
      return absl::InvalidArgumentError(absl::StrCat("template_args.tools_in_user_message is ",
                                                     PythonDumps(*flag).substr(0, 100),
                                                     ", not true or false"));
    }
    read.tools_in_user_message = flag->kind == JsonValue::Kind::kTrue;
  }
  return read;
}

class Llama3Template final : public ChatTemplate {
 public:
  Llama3Template(Llama3Version version, bool always_prompt)
      : version_(version), always_prompt_(always_prompt) {}

  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     const ChatRenderOptions& options) const override {
    ASSIGN_OR_RETURN(const ChatInput input, ReadChatInput(messages, options));
    std::string out = "<|begin_of_text|>";
    if (version_ == Llama3Version::k3) {
      RETURN_IF_ERROR(RefuseTools(input, family()));
      for (const ChatInput::Message& message : input.messages) {
        AppendHeader(message.role, out);
        out.append(PythonStrip(message.content)).append("<|eot_id|>");
      }
    } else {
      RETURN_IF_ERROR(Render31(input, out));
    }
    if (input.add_generation_prompt || always_prompt_) AppendHeader("assistant", out);
    return out;
  }

  const char* family() const override { return "llama3"; }

 private:
  static absl::Status Render31(const ChatInput& input, std::string& out) {
    ASSIGN_OR_RETURN(const Llama31Args args, ReadArgs(input.args));
    size_t next = 0;
    std::string_view system;
    if (input.messages[0].role == "system") {
      system = PythonStrip(input.messages[0].content);
      next = 1;
    }
    const bool tools = !input.tools.empty();
    AppendHeader("system", out);
    if (tools) out += "Environment: ipython\n";
    out.append("Cutting Knowledge Date: December 2023\nToday Date: ").append(args.date);
    out += "\n\n";
    if (tools && !args.tools_in_user_message) {
      out +=
          "You have access to the following functions. To call a function, please respond with "
          "JSON "
          "for a function call.";
      out += kFormat;
      AppendToolList(input, out);
    }
    out.append(system).append("<|eot_id|>");
    if (tools && args.tools_in_user_message) {
      if (next == input.messages.size()) {
        return absl::InvalidArgumentError(
            "tools_json is set, but messages has nothing behind the system message; the chat "
            "template (llama3) names tools in the first user message");
      }
      AppendHeader("user", out);
      out +=
          "Given the following functions, please respond with a JSON for a function call with its "
          "proper arguments that best answers the given prompt.\n\n";
      out += kFormat;
      AppendToolList(input, out);
      out.append(PythonStrip(input.messages[next].content)).append("<|eot_id|>");
      ++next;
    }
    for (; next < input.messages.size(); ++next) {
      const ChatInput::Message& message = input.messages[next];
      if (!message.calls.empty()) {
        if (message.calls.size() != 1) {
          return absl::InvalidArgumentError(
              absl::StrCat("messages[", next, "].tool_calls_json has ", message.calls.size(),
                           " calls; the chat template (llama3) takes 1"));
        }
        AppendHeader("assistant", out);
        out.append("{\"name\": \"").append(message.calls[0].name).append("\", \"parameters\": ");
        out.append(PythonDumps(message.calls[0].arguments)).append("}<|eot_id|>");
      } else if (message.role == "tool") {
        AppendHeader("ipython", out);
        JsonValue text;  // a string is iterable, and what is iterable goes through tojson
        text.kind = JsonValue::Kind::kString;
        text.text = message.content;
        out.append(PythonDumps(text)).append("<|eot_id|>");
      } else {
        AppendHeader(message.role, out);
        out.append(PythonStrip(message.content)).append("<|eot_id|>");
      }
    }
    return absl::OkStatus();
  }

  const Llama3Version version_;
  const bool always_prompt_;
};

}  // namespace

std::unique_ptr<ChatTemplate> NewLlama3Template(Llama3Version version, bool always_prompt) {
  return std::make_unique<Llama3Template>(version, always_prompt);
}

}  // namespace quire
