// Parsing of a client's message with an error that says what is wrong with it.
//
// gRPC's own answer to a message that protobuf refuses (malformed UTF-8 in a string, above all) is
// an UNIMPLEMENTED without a word; the services therefore take raw bytes and parse here.
#ifndef QUIRE_COMMON_INFERENCE_WIRE_CHECK_H_
#define QUIRE_COMMON_INFERENCE_WIRE_CHECK_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace quire {

// The offset of the first byte that is no part of well-formed UTF-8 (Unicode table 3-7).
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// Errors: INVALID_ARGUMENT naming the field and the byte, e.g.
// "messages[1].content: malformed UTF-8 at byte 17", or the message's name if its encoding is
// broken.
absl::Status ParseWire(const std::string& bytes, google::protobuf::Message* message);

}  // namespace quire

#endif  // QUIRE_COMMON_INFERENCE_WIRE_CHECK_H_
