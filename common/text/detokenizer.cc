#include "common/text/detokenizer.h"

#include <algorithm>
#include <deque>

#include "common/text/unicode.h"

namespace quire {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

std::string IncrementalDetokenizer::Add(TokenId id) {
  std::string out;
  if (skip_special_tokens_ && tokenizer_.IsSpecial(id)) return out;
  pending_.append(tokenizer_.TokenBytes(id));
  size_t pos = 0;
  while (pos < pending_.size()) {
    const Utf8Part part = NextUtf8Part(std::string_view(pending_).substr(pos));
    if (part.kind == Utf8Part::Kind::kIncomplete) break;
    if (part.kind == Utf8Part::Kind::kValid) {
      out.append(pending_, pos, part.size);
    } else {
      out.append(kReplacementCharacter);
    }
    pos += part.size;
  }
  pending_.erase(0, pos);
  return out;
}

std::string IncrementalDetokenizer::Flush() {
  std::string out = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return out;
}

// Aho-Corasick: node 0 is the root, a node stands for the text on its path, which is the longest
// tail of the input that is a prefix of some stop string.
struct StopMatcher::Automaton {
  struct Node {
    std::vector<std::pair<char, int32_t>> children;
    int32_t fail = 0;
    int32_t depth = 0;
    int32_t stop = -1;  // the longest stop string that ends here
    int32_t stop_size = 0;
  };
  std::vector<Node> nodes{1};

  int32_t Child(int32_t node, char c) const {
    for (const auto& [byte, child] : nodes[node].children) {
      if (byte == c) return child;
    }
    return -1;
  }
  int32_t Next(int32_t node, char c) const {
    for (;; node = nodes[node].fail) {
      if (const int32_t child = Child(node, c); child >= 0) return child;
      if (node == 0) return 0;
    }
  }
};

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  auto automaton = std::make_shared<Automaton>();
  auto& nodes = automaton->nodes;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) continue;
    int32_t node = 0;
    for (const char c : stops[i]) {
      int32_t child = automaton->Child(node, c);
      if (child < 0) {
        child = static_cast<int32_t>(nodes.size());
        nodes[node].children.emplace_back(c, child);
        Automaton::Node added;
        added.depth = nodes[node].depth + 1;
        nodes.push_back(std::move(added));
      }
      node = child;
    }
    if (nodes[node].stop < 0) {  // of equal ones the first in the list
      nodes[node].stop = static_cast<int32_t>(i);
      nodes[node].stop_size = static_cast<int32_t>(stops[i].size());
    }
  }
  if (nodes.size() == 1) return;
  std::deque<int32_t> queue;  // by depth, so that the link of a node is known before its children's
  for (const auto& [c, child] : nodes[0].children) queue.push_back(child);
  while (!queue.empty()) {
    const int32_t node = queue.front();
    queue.pop_front();
    for (const auto& [c, child] : nodes[node].children) {
      nodes[child].fail = automaton->Next(nodes[node].fail, c);
      queue.push_back(child);
    }
    const Automaton::Node& shorter = nodes[nodes[node].fail];
    if (nodes[node].stop < 0 && shorter.stop >= 0) {
      nodes[node].stop = shorter.stop;
      nodes[node].stop_size = shorter.stop_size;
    }
  }
  automaton_ = std::move(automaton);
}

StopMatcher::Result StopMatcher::Add(std::string_view text) {
  Result result;
  if (automaton_ == nullptr) {
    result.text = std::string(text);
    return result;
  }
  held_.append(text);
  for (size_t i = held_.size() - text.size(); i < held_.size(); ++i) {
    state_ = automaton_->Next(state_, held_[i]);
    const Automaton::Node& node = automaton_->nodes[state_];
    if (node.stop >= 0) {
      result.text = held_.substr(0, i + 1 - static_cast<size_t>(node.stop_size));
      result.stop_index = node.stop;
      held_.clear();
      state_ = 0;
      return result;
    }
  }
  const size_t keep = static_cast<size_t>(automaton_->nodes[state_].depth);
  result.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopMatcher::Flush() {
  std::string out;
  out.swap(held_);
  state_ = 0;
  return out;
}

}  // namespace quire
