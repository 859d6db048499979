// Block keys: the 32-byte name of a full block's content, the same in router, worker and cachesvc.
//
//   root   = SHA-256("quire.block.v1" | f(1, model_digest) | f(2, kv_layout) | f(3, numerics) |
//                    f(4, adapter) | f(5, salt))
//   key[i] = SHA-256((i == 0 ? root : key[i-1]) | f(6, variant) | tokens of block i as u32le)
//   f(tag, x) = tag as one byte | length of x as u32le | x
//
// Only full blocks have keys. Golden vectors: tests/golden/block_key (made by an independent script).
#ifndef QUIRE_COMMON_BLOCK_KEY_H_
#define QUIRE_COMMON_BLOCK_KEY_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct BlockKey {
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
  std::string ToHex() const;
  // The first 8 bytes: what a hash table or the router's index needs of a digest.
  uint64_t prefix() const {
    uint64_t x;
    std::memcpy(&x, bytes.data(), sizeof(x));
    return x;
  }
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return static_cast<size_t>(key.prefix()); }
};

struct BlockKeyRoot {
  std::string model_digest;
  std::string kv_layout;
  std::string numerics;
  std::string adapter;
  std::string salt;
  BlockKey Compute() const;
};

// The key of the block that follows `parent` (the root for the first block).
BlockKey NextBlockKey(const BlockKey& parent, std::string_view variant,
                      std::span<const int32_t> tokens);

// Keys of all full blocks of `tokens`.
std::vector<BlockKey> ChainBlockKeys(const BlockKey& root, std::string_view variant,
                                     std::span<const int32_t> tokens, int32_t block_size);

}  // namespace quire

#endif  // QUIRE_COMMON_BLOCK_KEY_H_
