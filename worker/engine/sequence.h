// Sequence and Request: the running state of one choice, and of the request its choices belong to.
// Plain state; the engine core (engine_core_impl.h) keeps it.
#ifndef QUIRE_WORKER_ENGINE_SEQUENCE_H_
#define QUIRE_WORKER_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/block_key.h"
#include "common/clock.h"
#include "worker/engine/request.h"
#include "worker/engine/text_out.h"

namespace quire {

struct Request;

enum class SequenceState {
  kUnborn,   // in no list: choices but the first, until the prompt was computed
  kWaiting,  // holds no blocks
  kRunning,  // may hold blocks
  kEnded,
};

struct Sequence {
  Sequence(int64_t id_in, Request* request_in, int32_t choice_in, TextOut text_in)
      : id(id_in), request(request_in), choice(choice_in), text(std::move(text_in)) {}

  const int64_t id;
  Request* const request;
  const int32_t choice;

  SequenceState state = SequenceState::kUnborn;
  int32_t slot = -1;               // sampler slot; -1 = none
  bool slot_attached = false;      // the backend knows
  std::vector<int32_t> tokens;     // prompt and output, as far as known
  std::vector<BlockKey> keys;      // of the first blocks whose tokens are all known
  std::vector<int32_t> blocks;     // the table
  int32_t num_planned = 0;         // positions whose K and V a plan has asked for
  int32_t num_done = 0;            // ... and a completed step has written
  int32_t num_committed = 0;       // blocks, from the first, that were committed or found
  int32_t num_pending = 0;         // samples in flight: tokens not known yet
  bool wants_scores = false;       // of the prompt
  bool wants_first_entry = false;  // the empty one is still to be given out
  int32_t num_scores_planned = 1;  // the first token has none
  int32_t num_flights = 0;         // steps in flight that refer to this sequence
  int64_t last_step = -1;          // the last one
  int32_t last_sample = -1;        // this sequence's index in its samples
  uint32_t life = 0;               // counts preemptions: what older steps wrote is given up
  bool bad = false;                // not finite
  int32_t delta = -1;              // index of its delta in the outputs being made
  TextOut text;

  int32_t num_known() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_outputs() const;  // known ones
  // Positions that must be planned until the next sample can be taken.
  int32_t target() const { return num_known() + num_pending; }
  int32_t num_rows_left() const { return target() - num_planned; }
};

struct Request {
  EngineRequest in;
  std::shared_ptr<const std::vector<int32_t>> prompt;
  int32_t num_prompt = 0;
  int32_t max_tokens = 0;
  bool keep_keys = false;                                  // reads or stores prefixes
  std::vector<int32_t> end_ids;                            // the model's, unless ignore_eos
  std::vector<std::pair<int32_t, int32_t>> stop_specials;  // (token id, index in stop)
  std::vector<int32_t> banned_ids;                         // all that end, for min_tokens
  std::vector<std::unique_ptr<Sequence>> choices;
  std::vector<ChoiceFinish> finishes;

  bool forked = false;  // all choices have a life of their own
  bool started = false;
  bool ended = false;
  int32_t num_ended = 0;  // choices
  int32_t cached_tokens = 0;
  int64_t num_generated = 0;  // all choices, resumed tokens included
  int64_t num_credits = 0;    // tokens that may be sent in all
  int64_t num_sent = 0;       // sampled or being sampled
  TimeUs first_scheduled_us = 0, first_token_us = 0;

  // Waiting for another sequence's blocks (in-flight deduplication).
  bool dedup = true;
  int64_t awaited_id = -1;    // sequence
  int32_t awaited_done = -1;  // its num_done when it last got on
  int64_t awaited_since = 0;  // MakePlan call of that

  const SamplingParams& sampling() const { return *in.sampling; }
  int32_t num_choices() const { return static_cast<int32_t>(choices.size()); }
  bool out_of_credits() const { return max_tokens > 0 && num_sent >= num_credits; }
};

inline int32_t Sequence::num_outputs() const { return num_known() - request->num_prompt; }

// The order in which sequences are served: higher priority, then earlier arrival.
inline bool GoesBefore(const Sequence& a, const Sequence& b) {
  const EngineRequest& x = a.request->in;
  const EngineRequest& y = b.request->in;
  if (x.priority != y.priority) return x.priority > y.priority;
  if (x.arrival_us != y.arrival_us) return x.arrival_us < y.arrival_us;
  if (x.id != y.id) return x.id < y.id;
  return a.choice < b.choice;
}

// Age alone: who the progress guarantee holds for.
inline bool IsOlder(const Sequence& a, const Sequence& b) {
  const EngineRequest& x = a.request->in;
  const EngineRequest& y = b.request->in;
  if (x.arrival_us != y.arrival_us) return x.arrival_us < y.arrival_us;
  if (x.id != y.id) return x.id < y.id;
  return a.choice < b.choice;
}

}  // namespace quire

#endif  // QUIRE_WORKER_ENGINE_SEQUENCE_H_
