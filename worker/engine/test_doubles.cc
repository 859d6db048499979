// Stand-ins for common/block_key.cc and common/text/detokenizer.cc until those are there.
#include "common/block_key.h"
#include "common/text/detokenizer.h"
namespace quire {
BlockKey NextBlockKey(const BlockKey& parent, std::string_view variant,
                      std::span<const int32_t> tokens) {
  BlockKey key;
  uint64_t h[4];
  std::memcpy(h, parent.bytes.data(), 32);
  for (int32_t t : tokens)
    for (auto& x : h)
      x = (x ^ (uint64_t)(t + 1 + variant.size())) * 0x9E3779B97F4A7C15u + (x >> 29) + (&x - h);
  std::memcpy(key.bytes.data(), h, 32);
  return key;
}
std::string BlockKey::ToHex() const { return "key"; }
IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& t, bool skip)
    : tokenizer_(t), skip_special_tokens_(skip) {}
std::string IncrementalDetokenizer::Add(TokenId id) {
  const TokenId ids[] = {id};
  std::string b = pending_ + tokenizer_.DecodeBytes(ids, skip_special_tokens_), out;
  pending_.clear();
  for (size_t i = 0; i < b.size(); ++i) {
    if (!(b[i] & 0x80)) {
      out += b[i];
      continue;
    }
    if (b[i] == '\xC3' && i + 1 == b.size()) {
      pending_ = "\xC3";
      break;
    }
    if (b[i] == '\xC3' && b[i + 1] == '\xA9') {
      out += "\xC3\xA9";
      ++i;
      continue;
    }
    out += "\xEF\xBF\xBD";
  }
  return out;
}
std::string IncrementalDetokenizer::Flush() {
  return std::exchange(pending_, "").empty() ? "" : "\xEF\xBF\xBD";
}
struct StopMatcher::Automaton {
  std::vector<std::string> stops;
};
StopMatcher::StopMatcher(const std::vector<std::string>& stops)
    : automaton_(std::make_shared<Automaton>(Automaton{stops})) {}
StopMatcher::Result StopMatcher::Add(std::string_view text) {
  held_ += text;
  size_t end = std::string::npos, begin = 0;
  int idx = -1;
  for (size_t i = 0; i < automaton_->stops.size(); ++i) {
    const auto& s = automaton_->stops[i];
    if (s.empty()) continue;
    size_t at = held_.find(s);
    if (at == std::string::npos) continue;
    if (at + s.size() < end || (at + s.size() == end && at < begin)) {
      end = at + s.size();
      begin = at;
      idx = i;
    }
  }
  Result r;
  if (idx >= 0) {
    r.text = held_.substr(0, begin);
    r.stop_index = idx;
    held_.clear();
    return r;
  }
  size_t hold = 0;
  for (const auto& s : automaton_->stops)
    for (size_t n = std::min(s.size() ? s.size() - 1 : 0, held_.size()); n > hold; --n)
      if (held_.compare(held_.size() - n, n, s, 0, n) == 0) {
        hold = n;
        break;
      }
  r.text = held_.substr(0, held_.size() - hold);
  held_ = held_.substr(held_.size() - hold);
  return r;
}
std::string StopMatcher::Flush() { return std::exchange(held_, ""); }
}  // namespace quire
