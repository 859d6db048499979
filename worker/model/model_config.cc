#include "worker/model/model_config.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quire {
namespace {

constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxHidden = 1 << 17;
constexpr int32_t kMaxInner = 1 << 20;
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxHeadSize = 512;
constexpr int32_t kMaxVocab = 1 << 22;
constexpr int32_t kMaxPosition = 1 << 28;

absl::Status CheckRange(const std::string& origin, const char* field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(origin, ": ", field, " is ", value, ", must be in [1, ", max, "]"));
}

}  // namespace

const char* ArchitectureName(Architecture architecture) {
  switch (architecture) {
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kLlama:
      return "llama";
  }
  return "?";
}

std::string CanonicalConfig(const ModelConfig& c) {
  const RopeScaling& r = c.rope_scaling;
  std::string text = absl::StrFormat(
      "arch=%s layers=%d hidden=%d inner=%d q_heads=%d kv_heads=%d head_size=%d vocab=%d eps=%a "
      "theta=%a tied=%d qk_norm=%d qkv_bias=%d rope=%d,%a,%a,%a,%a,%a,%a,%a,%a,%a,%d",
      ArchitectureName(c.architecture), c.num_layers, c.hidden, c.inner, c.num_q_heads,
      c.num_kv_heads, c.head_size, c.vocab, c.rms_eps, c.rope_theta, c.tied_embeddings, c.qk_norm,
      c.qkv_bias, static_cast<int>(r.kind), r.factor, r.original_max_position, r.low_freq_factor,
      r.high_freq_factor, r.beta_fast, r.beta_slow, r.attention_factor, r.mscale, r.mscale_all_dim,
      r.truncate);
  for (double factor : r.freq_factors) absl::StrAppendFormat(&text, ",%a", factor);
  return text;
}

absl::Status ValidateModelConfig(const ModelConfig& c, const std::string& origin) {
  const struct {
    const char* field;
    int64_t value, max;
  } ranges[] = {
      {"number of layers", c.num_layers, kMaxLayers},
      {"hidden size", c.hidden, kMaxHidden},
      {"MLP width", c.inner, kMaxInner},
      {"number of attention heads", c.num_q_heads, kMaxHeads},
      {"number of KV heads", c.num_kv_heads, kMaxHeads},
      {"head size", c.head_size, kMaxHeadSize},
      {"vocabulary size", c.vocab, kMaxVocab},
      {"maximum position", c.max_position, kMaxPosition},
  };
  for (const auto& range : ranges) {
    const absl::Status status = CheckRange(origin, range.field, range.value, range.max);
    if (!status.ok()) return status;
  }
  if (c.num_q_heads % c.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": number of attention heads is ",
                                                   c.num_q_heads, ", no multiple of the ",
                                                   c.num_kv_heads, " KV heads"));
  }
  if (c.head_size % 16 != 0) {
    return absl::UnimplementedError(absl::StrCat(origin, ": head size ", c.head_size,
                                                 " is not supported, only multiples of 16 are"));
  }
  if (!(c.rms_eps > 0 && c.rms_eps < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": RMS norm epsilon is ", c.rms_eps, ", must be in (0, 1)"));
  }
  if (!(c.rope_theta >= 1 && c.rope_theta <= 1e12)) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": RoPE theta is ", c.rope_theta, ", must be in [1, 1e12]"));
  }
  const RopeScaling& r = c.rope_scaling;
  if (r.kind != RopeScaling::Kind::kNone && !(r.factor >= 1 && r.factor <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": RoPE scaling factor is ", r.factor, ", must be in [1, 1e6]"));
  }
  if ((r.kind == RopeScaling::Kind::kLlama3 || r.kind == RopeScaling::Kind::kYarn) &&
      !(r.original_max_position >= 1 && r.original_max_position <= kMaxPosition)) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": RoPE original maximum position is ",
                                                   r.original_max_position, ", must be in [1, ",
                                                   kMaxPosition, "]"));
  }
  if (r.kind == RopeScaling::Kind::kLlama3 &&
      !(r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": RoPE low_freq_factor ", r.low_freq_factor, " and high_freq_factor ",
                     r.high_freq_factor, " must be above 0 and ascending"));
  }
  if (r.kind == RopeScaling::Kind::kYarn &&
      !(r.beta_fast > 0 && r.beta_slow > 0 && c.rope_theta > 1)) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": RoPE beta_fast ", r.beta_fast,
                                                   ", beta_slow ", r.beta_slow, ", theta ",
                                                   c.rope_theta, " must be above 0, 0 and 1"));
  }
  if (!r.freq_factors.empty() && r.freq_factors.size() != static_cast<size_t>(c.head_size) / 2) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": rope_freqs has ",
                                                   r.freq_factors.size(), " values, must have ",
                                                   c.head_size / 2, ", half the head size"));
  }
  for (double factor : r.freq_factors) {
    if (!(factor > 0 && std::isfinite(factor))) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": rope_freqs holds ", factor, ", must be above 0"));
    }
  }
  for (const int32_t id : c.eos_ids) {
    if (id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": eos_token_id is ", id, ", must be at least 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
