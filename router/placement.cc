#include "router/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {
// A running request takes one row of every step: about as much as so many tokens of prefill, since
// a decode row reads the weights like a small chunk does.
constexpr double kTokensPerRunningRequest = 16;
}  // namespace

PlacementChoice ChoosePlacement(const std::vector<PlacementCandidate>& candidates,
                                int64_t prompt_tokens, int round_robin) {
  PlacementChoice choice;
  const int n = static_cast<int>(candidates.size());
  choice.costs.resize(candidates.size(), -1);
  for (int offset = 0; offset < n; ++offset) {
    const int i = (round_robin + offset) % n;
    const PlacementCandidate& c = candidates[static_cast<size_t>(i)];
    if (!c.refused.empty()) continue;
    double& cost = choice.costs[static_cast<size_t>(i)];
    cost = static_cast<double>(std::max<int64_t>(1, prompt_tokens - c.cached_tokens) +
                               c.uncached_tokens_in_flight) +
           kTokensPerRunningRequest * static_cast<double>(c.requests_in_flight);
    if (choice.worker < 0) {
      choice.worker = i;
      continue;
    }
    const double best = choice.costs[static_cast<size_t>(choice.worker)];
    const PlacementCandidate& b = candidates[static_cast<size_t>(choice.worker)];
    if (cost < best || (cost == best && c.requests_in_flight < b.requests_in_flight)) {
      choice.worker = i;
    }
  }
  if (choice.worker >= 0) {
    const int64_t cached = candidates[static_cast<size_t>(choice.worker)].cached_tokens;
    choice.reason = cached > 0 ? absl::StrCat("prefix: ", cached, " of ", prompt_tokens, " tokens")
                               : std::string("least loaded");
  }
  return choice;
}

}  // namespace quire
