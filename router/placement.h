// Placement: which worker a request goes to: filter, cost, pick. Pure functions of what the router
// knows.
#ifndef QUIRE_ROUTER_PLACEMENT_H_
#define QUIRE_ROUTER_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

// A worker as the router sees it, with respect to one request.
struct PlacementCandidate {
  std::string refused;                    // why it cannot take the request; "" = it can
  int64_t cached_tokens = 0;              // of the prompt, by the router's history
  int64_t uncached_tokens_in_flight = 0;  // of this router's requests there
  int64_t requests_in_flight = 0;
};

struct PlacementChoice {
  int worker = -1;  // index of the candidate; -1 = none
  std::string reason;
  std::vector<double> costs;  // tokens to be prefilled before the request's first token
};

// Cost = prompt tokens to prefill + uncached tokens in flight there + what the requests in flight
// cost in decode steps. Lowest wins; equal costs go to fewer requests in flight, then to the next
// after `round_robin`.
PlacementChoice ChoosePlacement(const std::vector<PlacementCandidate>& candidates,
                                int64_t prompt_tokens, int round_robin);

}  // namespace quire

#endif  // QUIRE_ROUTER_PLACEMENT_H_
