#include "common/block_key.h"

#include "common/sha256.h"
#include "common/status_macros.h"

namespace quire {
namespace {

void AppendU32(std::string& out, uint32_t x) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(x >> (8 * i)));
}

void AppendField(std::string& out, char tag, std::string_view value) {
  QUIRE_CHECK(value.size() <= UINT32_MAX);
  out.push_back(tag);
  AppendU32(out, static_cast<uint32_t>(value.size()));
  out.append(value);
}

// Hashes many blocks of one size: the padded message is laid out once, then only the parent's key
// and the tokens change in it.
class BlockHasher {
 public:
  BlockHasher(std::string_view variant, size_t num_tokens) : compress_(PickSha256Compress()) {
    message_.assign(32, '\0');  // the parent
    AppendField(message_, 6, variant);
    tokens_at_ = message_.size();
    message_.resize(tokens_at_ + 4 * num_tokens);
    const uint64_t bits = static_cast<uint64_t>(message_.size()) * 8;
    message_.push_back(static_cast<char>(0x80));
    while (message_.size() % 64 != 56) message_.push_back('\0');
    for (int shift = 56; shift >= 0; shift -= 8) {
      message_.push_back(static_cast<char>(bits >> shift));
    }
  }

  BlockKey Next(const BlockKey& parent, std::span<const int32_t> tokens) {
    std::memcpy(message_.data(), parent.bytes.data(), 32);
    char* out = message_.data() + tokens_at_;
    for (int32_t token : tokens) {  // compiles to one copy on little-endian machines
      const uint32_t x = static_cast<uint32_t>(token);
      const char bytes[4] = {static_cast<char>(x), static_cast<char>(x >> 8),
                             static_cast<char>(x >> 16), static_cast<char>(x >> 24)};
      std::memcpy(out, bytes, 4);
      out += 4;
    }
    std::array<uint32_t, 8> state = kSha256Initial;
    compress_(state.data(), reinterpret_cast<const uint8_t*>(message_.data()),
              message_.size() / 64);
    BlockKey key;
    Sha256StateToBytes(state.data(), key.bytes.data());
    return key;
  }

 private:
  Sha256CompressFn compress_;
  std::string message_;
  size_t tokens_at_ = 0;
};

}  // namespace

std::string BlockKey::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(64);
  for (uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

BlockKey BlockKeyRoot::Compute() const {
  std::string message = "quire.block.v1";
  AppendField(message, 1, model_digest);
  AppendField(message, 2, kv_layout);
  AppendField(message, 3, numerics);
  AppendField(message, 4, adapter);
  AppendField(message, 5, salt);
  return BlockKey{Sha256(message)};
}

BlockKey NextBlockKey(const BlockKey& parent, std::string_view variant,
                      std::span<const int32_t> tokens) {
  return BlockHasher(variant, tokens.size()).Next(parent, tokens);
}

std::vector<BlockKey> ChainBlockKeys(const BlockKey& root, std::string_view variant,
                                     std::span<const int32_t> tokens, int32_t block_size) {
  QUIRE_CHECK(block_size > 0);
  const size_t size = static_cast<size_t>(block_size), count = tokens.size() / size;
  std::vector<BlockKey> keys(count);
  BlockHasher hasher(variant, size);
  for (size_t i = 0; i < count; ++i) {
    keys[i] = hasher.Next(i == 0 ? root : keys[i - 1], tokens.subspan(i * size, size));
  }
  return keys;
}

}  // namespace quire
