#include "common/text/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"

namespace quire {

bool AddedTokenMatcher::Add(std::string_view content, int32_t index) {
  QUIRE_CHECK(!content.empty() && content.size() <= kMaxAddedTokenBytes);
  const int first = static_cast<unsigned char>(content[0]);
  single_first_ = nodes_.empty() || single_first_ == first ? first : -1;
  if (first_[first] < 0) {
    first_[first] = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  int32_t node = first_[first];
  for (const char c : content.substr(1)) {
    const auto& children = nodes_[node].children;
    const auto it =
        std::find_if(children.begin(), children.end(), [c](const auto& e) { return e.first == c; });
    if (it != children.end()) {
      node = it->second;
    } else {
      const auto added = static_cast<int32_t>(nodes_.size());
      nodes_[node].children.emplace_back(c, added);
      nodes_.emplace_back();
      node = added;
    }
  }
  if (nodes_[node].index >= 0) return false;
  nodes_[node].index = index;
  return true;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Find(std::string_view text,
                                                                size_t from) const {
  if (nodes_.empty()) return std::nullopt;
  for (size_t pos = from; pos < text.size(); ++pos) {
    if (single_first_ >= 0) {
      const void* hit = std::memchr(text.data() + pos, single_first_, text.size() - pos);
      if (hit == nullptr) return std::nullopt;
      pos = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    }
    int32_t node = first_[static_cast<unsigned char>(text[pos])];
    if (node < 0) continue;
    std::optional<Match> best;
    for (size_t end = pos + 1;; ++end) {
      if (nodes_[node].index >= 0) best = Match{pos, end, nodes_[node].index};
      if (end == text.size()) break;
      const auto& children = nodes_[node].children;
      const auto it = std::find_if(children.begin(), children.end(),
                                   [&](const auto& e) { return e.first == text[end]; });
      if (it == children.end()) break;
      node = it->second;
    }
    if (best.has_value()) return best;
  }
  return std::nullopt;
}

}  // namespace quire
