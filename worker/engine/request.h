// What the engine is asked and what it answers. Plain data; crosses threads by move.
#ifndef QUIRE_WORKER_ENGINE_REQUEST_H_
#define QUIRE_WORKER_ENGINE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/block_key.h"
#include "common/clock.h"
#include "worker/sampling/sampler.h"
#include "worker/sampling/sampling_params.h"

namespace quire {

// Unique in one engine; given by the shell.
using RequestId = int64_t;

struct EngineRequest {
  RequestId id = 0;
  std::vector<int32_t> prompt;          // at least one id, each in [0, vocab)
  std::vector<int32_t> resume;          // output tokens already sent by another worker; n must be 1
  std::shared_ptr<const SamplingParams> sampling;  // validated; max_tokens filled in
  BlockKey root;                        // of the tenant: block keys chain from here
  int32_t priority = 0;                 // higher goes first
  TimeUs arrival_us = 0;
  TimeUs deadline_us = 0;               // 0 = none
  bool read_prefix_cache = true;        // skip_prefix_cache and prompt_logprobs clear this
  bool store_prefix = true;             // no_store clears this: its blocks are never findable
  int32_t cacheable_tokens = 0;         // prefix worth pinning for cache_ttl; 0 = none
  int64_t cacheable_ttl_us = 0;
  int32_t credit_tokens = 4096;         // tokens that may be sent before Consumed() gives more
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

// Text and tokens of one choice that became certain in one step.
struct ChoiceDelta {
  RequestId request_id = 0;
  int32_t index = 0;
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<SampledToken> logprobs;         // one a token id, if asked for
  std::vector<SampledToken> prompt_logprobs;  // from the first position on; the first is empty
};

struct RequestStarted {
  RequestId request_id = 0;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // device tier
};

struct ChoiceFinish {
  FinishReason reason = FinishReason::kStop;
  std::string stop_matched;  // the stop string, or the text of the stop token; "" otherwise
};

struct RequestFinished {
  RequestId request_id = 0;
  absl::Status status;  // not OK: the request ends with this status instead of a Finished message
  std::vector<ChoiceFinish> choices;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t completion_tokens = 0;  // all choices
  // Microseconds: arrival to first scheduled; first scheduled to first token; arrival to first
  // token; first token to end; arrival to end.
  int64_t queue_us = 0, prefill_us = 0, ttft_us = 0, decode_us = 0, total_us = 0;
};

// Everything that one step (or a cancel) gave. A request has one `started`, then deltas, then
// exactly one `finished`.
struct EngineOutputs {
  std::vector<RequestStarted> started;
  std::vector<ChoiceDelta> deltas;
  std::vector<RequestFinished> finished;
  bool empty() const { return started.empty() && deltas.empty() && finished.empty(); }
};

// Counters since start and gauges of now, for metrics and GetStats.
struct EngineStats {
  int64_t steps = 0, preemptions = 0;
  int64_t prefix_queries_tokens = 0, prefix_hits_tokens = 0;  // of users' requests, recomputes not
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t requests_ok = 0, requests_cancelled = 0, requests_failed = 0;
  int32_t num_waiting = 0, num_running = 0;
  int32_t blocks_total = 0, blocks_held = 0, blocks_cached = 0, blocks_free = 0;
  int32_t blocks_pinned = 0;
  int64_t slots_allocated = 0, slots_used = 0;  // token positions of held blocks: waste = 1 - u/a
  int64_t tickets_open = 0;  // counted holds of sequences on blocks
};

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_REQUEST_H_
