#include "worker/engine_messages.h"

#include <algorithm>
#include <utility>

#include "common/inference/translate.h"

namespace quire {
namespace {

// Router (common) and engine must agree on what a request may ask for.
static_assert(kRequestMaxLogprobs == kMaxLogprobs);
static_assert(kRequestMaxChoices == kMaxChoices);
static_assert(kRequestMaxStops == kMaxStops);
static_assert(kRequestMaxStopBytes == kMaxStopBytes);

std::shared_ptr<const SamplingParams> SamplingFromProto(const v1::SamplingParams& in) {
  auto out = std::make_shared<SamplingParams>();
  out->max_tokens = in.max_tokens();
  out->temperature = in.temperature();
  out->top_p = in.top_p();
  out->top_k = in.top_k();
  out->min_p = in.min_p();
  out->repetition_penalty = in.repetition_penalty();
  out->presence_penalty = in.presence_penalty();
  out->frequency_penalty = in.frequency_penalty();
  for (const auto& [id, bias] : in.logit_bias()) {
    out->logit_bias.emplace_back(static_cast<int32_t>(id), bias);
  }
  std::sort(out->logit_bias.begin(), out->logit_bias.end());
  out->seed = in.seed();
  out->stop.assign(in.stop().begin(), in.stop().end());
  out->stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out->ignore_eos = in.ignore_eos();
  out->min_tokens = in.min_tokens();
  out->num_logprobs = in.has_logprobs() ? in.logprobs() : -1;
  out->num_prompt_logprobs = in.has_prompt_logprobs() ? in.prompt_logprobs() : -1;
  out->n = in.n();
  return out;
}

void LogprobsToProto(const std::vector<SampledToken>& in,
                     google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* out) {
  for (const SampledToken& token : in) {
    v1::TokenLogprobs* entry = out->Add();
    entry->set_token_id(static_cast<uint32_t>(token.token));
    entry->set_logprob(token.logprob);
    for (const TokenLogprob& top : token.top) {
      v1::TopLogprob* top_entry = entry->add_top();
      top_entry->set_token_id(static_cast<uint32_t>(top.token));
      top_entry->set_logprob(top.logprob);
    }
  }
}

v1::Choice::FinishReason ReasonToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::Choice::STOP;
    case FinishReason::kLength:
      return v1::Choice::LENGTH;
    case FinishReason::kCancelled:
      return v1::Choice::CANCELLED;
    case FinishReason::kError:
      return v1::Choice::ERROR;
  }
  return v1::Choice::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

EngineRequest EngineRequestFromSubmit(const v1::Submit& submit) {
  EngineRequest request;
  request.prompt.assign(submit.prompt_ids().begin(), submit.prompt_ids().end());
  request.resume.assign(submit.resume_ids().begin(), submit.resume_ids().end());
  request.sampling = SamplingFromProto(submit.sampling());
  request.priority = submit.priority();
  request.read_prefix_cache = submit.read_prefix_cache();
  request.store_prefix = submit.store_prefix();
  request.cacheable_tokens =
      static_cast<int32_t>(std::min<int64_t>(submit.cacheable_tokens(), submit.prompt_ids_size()));
  request.cacheable_ttl_us = submit.cacheable_ttl_us();
  request.credit_tokens =
      static_cast<int32_t>(std::clamp<uint32_t>(submit.credit_tokens(), 1, 1 << 20));
  return request;
}

v1::Started StartedToProto(const RequestStarted& started) {
  v1::Started out;
  out.set_prompt_tokens(static_cast<uint32_t>(started.prompt_tokens));
  out.mutable_cached_tokens()->set_device(static_cast<uint32_t>(started.cached_tokens));
  return out;
}

v1::Delta DeltaToProto(ChoiceDelta delta) {
  v1::Delta out;
  out.set_index(static_cast<uint32_t>(delta.index));
  out.set_text(std::move(delta.text));
  out.mutable_token_ids()->Assign(delta.token_ids.begin(), delta.token_ids.end());
  LogprobsToProto(delta.logprobs, out.mutable_logprobs());
  LogprobsToProto(delta.prompt_logprobs, out.mutable_prompt_logprobs());
  return out;
}

v1::Finished FinishedToProto(const RequestFinished& finished) {
  v1::Finished out;
  for (size_t i = 0; i < finished.choices.size(); ++i) {
    v1::Choice* choice = out.add_choices();
    choice->set_index(static_cast<uint32_t>(i));
    choice->set_finish_reason(ReasonToProto(finished.choices[i].reason));
    choice->set_stop_matched(finished.choices[i].stop_matched);
  }
  out.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(finished.prompt_tokens));
  out.mutable_usage()->set_cached_tokens(static_cast<uint32_t>(finished.cached_tokens));
  out.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(finished.completion_tokens));
  const auto ms = [](int64_t us) { return static_cast<double>(us) * 1e-3; };
  v1::Timings* timings = out.mutable_timings();
  timings->set_queue_ms(ms(finished.queue_us));
  timings->set_prefill_ms(ms(finished.prefill_us));
  timings->set_ttft_ms(ms(finished.ttft_us));
  timings->set_decode_ms(ms(finished.decode_us));
  timings->set_total_ms(ms(finished.total_us));
  return out;
}

v1::WorkerStats StatsToProto(const EngineStats& stats) {
  v1::WorkerStats out;
  out.set_steps(static_cast<uint64_t>(stats.steps));
  out.set_preemptions(static_cast<uint64_t>(stats.preemptions));
  out.set_prefix_queries_tokens(static_cast<uint64_t>(stats.prefix_queries_tokens));
  out.set_prefix_hits_tokens(static_cast<uint64_t>(stats.prefix_hits_tokens));
  out.set_prompt_tokens(static_cast<uint64_t>(stats.prompt_tokens));
  out.set_generated_tokens(static_cast<uint64_t>(stats.generated_tokens));
  out.set_requests_ok(static_cast<uint64_t>(stats.requests_ok));
  out.set_requests_cancelled(static_cast<uint64_t>(stats.requests_cancelled));
  out.set_requests_failed(static_cast<uint64_t>(stats.requests_failed));
  out.set_requests_waiting(static_cast<uint32_t>(stats.num_waiting));
  out.set_requests_running(static_cast<uint32_t>(stats.num_running));
  out.set_blocks_total(static_cast<uint32_t>(stats.blocks_total));
  out.set_blocks_held(static_cast<uint32_t>(stats.blocks_held));
  out.set_blocks_cached(static_cast<uint32_t>(stats.blocks_cached));
  out.set_blocks_free(static_cast<uint32_t>(stats.blocks_free));
  out.set_blocks_pinned(static_cast<uint32_t>(stats.blocks_pinned));
  out.set_slots_allocated(static_cast<uint64_t>(stats.slots_allocated));
  out.set_slots_used(static_cast<uint64_t>(stats.slots_used));
  out.set_tickets_open(static_cast<uint64_t>(stats.tickets_open));
  return out;
}

}  // namespace quire
