// SHA-256 (FIPS 180-4) for block keys: SHA-NI where the processor has it, plain C++ otherwise.
// Own code because a block is two compressions, and a library's call costs more than one of them.
#ifndef QUIRE_COMMON_SHA256_H_
#define QUIRE_COMMON_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire {

inline constexpr std::array<uint32_t, 8> kSha256Initial = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// Takes `count` blocks of 64 bytes into `state`.
using Sha256CompressFn = void (*)(uint32_t state[8], const uint8_t* blocks, size_t count);

void Sha256CompressPortable(uint32_t state[8], const uint8_t* blocks, size_t count);
// Requires HasShaNi(). Elsewhere than on x86-64 it is the portable one.
void Sha256CompressShaNi(uint32_t state[8], const uint8_t* blocks, size_t count);
bool HasShaNi();

// The fastest for this machine.
inline Sha256CompressFn PickSha256Compress() {
  return HasShaNi() ? Sha256CompressShaNi : Sha256CompressPortable;
}

void Sha256StateToBytes(const uint32_t state[8], uint8_t out[32]);

std::array<uint8_t, 32> Sha256(std::string_view message,
                               Sha256CompressFn compress = PickSha256Compress());

}  // namespace quire

#endif  // QUIRE_COMMON_SHA256_H_
