#include "worker/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Long waves are stretched by the factor, short ones kept, those between blended.
double Llama3Frequency(double inv_freq, const RopeScaling& scaling) {
  const double wavelength = kTwoPi / inv_freq;
  const double turns = scaling.original_max_position / wavelength;
  if (turns < scaling.low_freq_factor) return inv_freq / scaling.factor;
  if (turns > scaling.high_freq_factor) return inv_freq;
  const double smooth =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq;
}

// The dimension whose wave makes `turns` turns within the original length.
double YarnDimension(double turns, const ModelConfig& config) {
  return config.head_size * std::log(config.rope_scaling.original_max_position / (turns * kTwoPi)) /
         (2 * std::log(config.rope_theta));
}

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace

std::vector<double> RopeInverseFrequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const int half = config.head_size / 2;
  double low = 0, high = 0;
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    low = YarnDimension(scaling.beta_fast, config);
    high = YarnDimension(scaling.beta_slow, config);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, config.head_size - 1.0);
    if (low == high) high += 0.001;
  }
  std::vector<double> inv_freqs(half);
  for (int i = 0; i < half; ++i) {
    double inv_freq = std::pow(config.rope_theta, -2.0 * i / config.head_size);
    switch (scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        inv_freq /= scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        inv_freq = Llama3Frequency(inv_freq, scaling);
        break;
      case RopeScaling::Kind::kYarn: {
        const double stretched = std::clamp((i - low) / (high - low), 0.0, 1.0);
        inv_freq = inv_freq / scaling.factor * stretched + inv_freq * (1 - stretched);
        break;
      }
    }
    if (!scaling.freq_factors.empty()) inv_freq /= scaling.freq_factors[i];
    inv_freqs[i] = inv_freq;
  }
  return inv_freqs;
}

double RopeAttentionFactor(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind != RopeScaling::Kind::kYarn) return 1;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
    return YarnScale(scaling.factor, scaling.mscale) /
           YarnScale(scaling.factor, scaling.mscale_all_dim);
  }
  return YarnScale(scaling.factor, 1);
}

absl::StatusOr<RopeTable> RopeTable::Create(const ModelConfig& config, int64_t max_positions) {
  constexpr int64_t kMaxPositions = int64_t{1} << 28;
  if (max_positions < 1 || max_positions > kMaxPositions) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_positions is ", max_positions, ", must be in [1, ", kMaxPositions, "]"));
  }
  const std::vector<double> inv_freqs = RopeInverseFrequencies(config);
  const double attention_factor = RopeAttentionFactor(config);
  const auto half = static_cast<int64_t>(inv_freqs.size());
  RopeTable table;
  table.max_positions_ = max_positions;
  table.cos_.resize(max_positions * half);
  table.sin_.resize(max_positions * half);
  for (int64_t p = 0; p < max_positions; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * inv_freqs[i];
      table.cos_[p * half + i] = static_cast<float>(std::cos(angle) * attention_factor);
      table.sin_[p * half + i] = static_cast<float>(std::sin(angle) * attention_factor);
    }
  }
  return table;
}

}  // namespace quire
