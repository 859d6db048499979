#include "common/inference/wire_check.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>

#include <map>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 100;  // protobuf's own

// Walks the encoding of a message of type `type`; "" if nothing wrong was found, else the fault.
std::string FindFault(const Descriptor& type, std::string_view bytes, const std::string& path,
                      int depth) {
  if (depth > kMaxDepth) return absl::StrCat(path, ": nested deeper than ", kMaxDepth);
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  std::map<int, int> seen;  // field number: times, for the index in the path
  while (const uint32_t tag = in.ReadTag()) {
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const FieldDescriptor* field = type.FindFieldByNumber(number);
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) break;
      continue;
    }
    uint32_t size = 0;
    if (!in.ReadVarint32(&size) || size > bytes.size() - static_cast<size_t>(in.CurrentPosition()))
      break;
    const std::string_view value = bytes.substr(static_cast<size_t>(in.CurrentPosition()), size);
    in.Skip(static_cast<int>(size));
    if (field == nullptr) continue;
    std::string name = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    if (field->is_repeated()) absl::StrAppend(&name, "[", seen[number]++, "]");
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      if (const std::optional<size_t> offset = FindInvalidUtf8(value)) {
        return absl::StrCat(name, ": malformed UTF-8 at byte ", *offset);
      }
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      std::string fault = FindFault(*field->message_type(), value, name, depth + 1);
      if (!fault.empty()) return fault;
    }
  }
  if (static_cast<size_t>(in.CurrentPosition()) < bytes.size()) {
    return absl::StrCat(path.empty() ? type.full_name() : path, ": broken encoding at byte ",
                        in.CurrentPosition());
  }
  return "";
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t i = 0;
  while (i < text.size()) {
    const unsigned char lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    size_t length = 0;
    unsigned char low = 0x80, high = 0xbf;  // of the second byte
    if (lead >= 0xc2 && lead <= 0xdf) {
      length = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      length = 3;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      length = 4;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (length == 0 || i + length > text.size()) return i;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (size_t j = 2; j < length; ++j) {
      if ((byte(i + j) & 0xc0) != 0x80) return i;
    }
    i += length;
  }
  return std::nullopt;
}

absl::Status ParseWire(const std::string& bytes, google::protobuf::Message* message) {
  // First, since protobuf's parser writes a line to stderr for each malformed string.
  std::string fault = FindFault(*message->GetDescriptor(), bytes, "", 0);
  if (fault.empty() && message->ParseFromString(bytes)) return absl::OkStatus();
  if (fault.empty()) {
    fault = absl::StrCat("the request is no valid ", message->GetDescriptor()->full_name());
  }
  return absl::InvalidArgumentError(fault);
}

}  // namespace quire
