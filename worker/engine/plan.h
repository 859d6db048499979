// StepPlan and StepResult: what the engine core asks a backend to run, and what comes back.
//
// A plan may be made while the step before it is still running (plans run one step ahead): a token
// that is not known yet is named by the sample that will give it. Backends run plans in order.
#ifndef QUIRE_WORKER_ENGINE_PLAN_H_
#define QUIRE_WORKER_ENGINE_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/sampling/sampler.h"
#include "worker/sampling/sampling_params.h"

namespace quire {

// Where an input row's token comes from: a literal, or sample `sample_index` of the plan before.
struct TokenSource {
  int32_t token = -1;         // >= 0: the literal
  int32_t sample_index = -1;  // used if token < 0: index into `samples` of plan step_id - 1
};

// One sequence's rows in a step: positions [first_position, first_position + num_rows).
struct PlanSequence {
  int64_t sequence_id = 0;
  int32_t first_row = 0;       // into StepPlan::tokens
  int32_t num_rows = 0;        // > 0
  int32_t first_position = 0;  // of first_row
  int64_t table_begin = 0;     // into StepPlan::block_ids; covers all positions up to the last row
  int32_t table_size = 0;
};

// One wanted token. The logits are those of `row`. With drafts, rows row+1 .. row+num_drafts hold
// draft tokens and sampling goes on while each sampled token equals the next draft.
struct PlanSample {
  int32_t row = 0;
  int32_t slot = 0;          // sampler slot
  int32_t output_index = 0;  // position in the choice's output of the first token
  int32_t num_drafts = 0;
};

// Prompt logprobs: score `token` with the logits of `row`.
struct PlanScore {
  int32_t row = 0;
  int32_t token = 0;
  int32_t num_top = 0;
};

struct SlotAttach {
  int32_t slot = 0;
  std::shared_ptr<const SamplingParams> params;
  int32_t choice_index = 0;
  std::vector<int32_t> stop_ids;                        // what min_tokens bans
  std::shared_ptr<const std::vector<int32_t>> prompt;   // for the repetition penalty
  std::vector<int32_t> output;  // already sampled tokens (a resumed request), in order
};

// Copy-on-write: block `to` takes the bytes of block `from`, before the step runs.
struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

struct StepPlan {
  int64_t step_id = 0;
  std::vector<int32_t> detach_slots;  // first
  std::vector<SlotAttach> attach_slots;
  std::vector<BlockCopy> copies;
  std::vector<TokenSource> tokens;  // [num_rows]
  std::vector<PlanSequence> sequences;
  std::vector<int32_t> block_ids;
  std::vector<PlanSample> samples;
  std::vector<PlanScore> scores;

  int32_t num_rows() const { return static_cast<int32_t>(tokens.size()); }
  bool empty() const {
    return tokens.empty() && detach_slots.empty() && attach_slots.empty() && copies.empty();
  }
};

struct StepResult {
  int64_t step_id = 0;
  // One entry a PlanSample: 1 to num_drafts + 1 tokens, the first `size() - 1` equal to the drafts.
  // A token of -1 says that the logits were not finite: the choice ends with an error.
  std::vector<std::vector<SampledToken>> samples;
  std::vector<SampledToken> scores;         // one a PlanScore
  std::vector<int64_t> non_finite_sequences;  // sequence ids whose new K or V is not finite
  double model_seconds = 0;  // time in kernels
};

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_PLAN_H_
