// Time as a parameter: cores take it as an argument, shells ask a Clock.
#ifndef QUIRE_COMMON_CLOCK_H_
#define QUIRE_COMMON_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace quire {

// Microseconds on a monotonic clock of this process. Arithmetic on it is plain integers.
using TimeUs = int64_t;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeUs NowUs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimeUs NowUs() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Moves only when told; for tests of cores.
class FakeClock final : public Clock {
 public:
  TimeUs NowUs() const override { return now_us_; }
  void Advance(int64_t us) { now_us_ += us; }

 private:
  TimeUs now_us_ = 1'000'000;
};

}  // namespace quire

#endif  // QUIRE_COMMON_CLOCK_H_
