// Philox4x32-10: a random block as a function of a counter and a key. Salmon et al., SC 2011.
#ifndef QUIRE_WORKER_SAMPLING_PHILOX_H_
#define QUIRE_WORKER_SAMPLING_PHILOX_H_

#include <array>
#include <cstdint>

namespace quire {

inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * counter[0];
    const uint64_t b = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

}  // namespace quire

#endif  // QUIRE_WORKER_SAMPLING_PHILOX_H_
