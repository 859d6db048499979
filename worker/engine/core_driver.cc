#include "worker/engine/core_driver.h"

#include <gtest/gtest.h>

#include <utility>

#include "worker/engine/text_out.h"

namespace quire::test {

CoreDriver::CoreDriver(const EngineOptions& options_in, const FakeBackend::Options& backend_in)
    : options(options_in), backend(backend_in) {
  core = std::make_unique<EngineCore>(options);
}

RequestId CoreDriver::Submit(EngineRequest request) {
  request.id = next_id_++;
  request.arrival_us = clock.NowUs();
  requests[request.id] = request;
  results[request.id].choices.resize(request.sampling->n);
  const RequestId id = request.id;
  EngineOutputs outputs;
  core->Submit(clock.NowUs(), std::move(request), &outputs);
  Gather(std::move(outputs));
  return id;
}

void CoreDriver::Cancel(RequestId id, absl::Status status) {
  EngineOutputs outputs;
  core->Cancel(clock.NowUs(), id, std::move(status), &outputs);
  Gather(std::move(outputs));
}

bool CoreDriver::Launch() {
  EngineOutputs outputs;
  StepPlan& plan = plans[(num_plans + 1) % 2];
  const bool made = core->num_steps_in_flight() < options.max_steps_in_flight &&
                    core->MakePlan(clock.NowUs(), &plan, &outputs);
  Gather(std::move(outputs));
  if (!made) return false;
  ++num_plans;
  EXPECT_LE(plan.num_rows(), options.max_num_batched_tokens);
  const absl::Status status = backend.Launch(plan);
  EXPECT_TRUE(status.ok()) << status;
  return true;
}

bool CoreDriver::Complete() {
  if (core->num_steps_in_flight() == 0) return false;
  absl::StatusOr<StepResult> result = backend.Finish();
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return false;
  EngineOutputs outputs;
  core->Complete(clock.NowUs(), *result, &outputs);
  Gather(std::move(outputs));
  return true;
}

bool CoreDriver::Step() {
  bool did = false;
  while (Launch()) did = true;
  did |= Complete();
  clock.Advance(1000);
  const absl::Status status = core->CheckInvariants();
  EXPECT_TRUE(status.ok()) << status;
  return did && status.ok();
}

void CoreDriver::Run(int max_steps) {
  int steps = 0;
  while (Step() && !testing::Test::HasFailure()) {
    ASSERT_LT(++steps, max_steps) << "does not end";
  }
}

const Gathered& CoreDriver::Generate(EngineRequest request) {
  const RequestId id = Submit(std::move(request));
  Run();
  return results[id];
}

void CoreDriver::Gather(EngineOutputs outputs) {
  for (const RequestStarted& started : outputs.started) {
    Gathered& g = results[started.request_id];
    g.in_order &= ++g.num_started == 1 && g.num_finished == 0;
    g.started = started;
  }
  for (ChoiceDelta& delta : outputs.deltas) {
    Gathered& g = results[delta.request_id];
    g.in_order &= g.num_started == 1 && g.num_finished == 0;
    Gathered::Choice& choice = g.choices.at(delta.index);
    choice.text += delta.text;
    choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (SampledToken& t : delta.logprobs) choice.logprobs.push_back(std::move(t));
    for (SampledToken& t : delta.prompt_logprobs) choice.prompt_logprobs.push_back(std::move(t));
  }
  for (RequestFinished& finished : outputs.finished) {
    Gathered& g = results[finished.request_id];
    EXPECT_EQ(++g.num_finished, 1) << "request " << finished.request_id;
    g.finished = std::move(finished);
  }
}

EngineOptions SmallOptions(const FakeBackend::Options& backend) {
  EngineOptions options;
  options.block_size = backend.block_size;
  options.num_blocks = backend.num_blocks;
  options.num_slots = backend.num_slots;
  options.max_num_seqs = backend.num_slots;
  options.max_num_batched_tokens = 256;
  options.max_model_len = backend.num_blocks * backend.block_size;
  options.eos_ids = {kFakeEos};
  static const FakeTokenizer* const tokenizer = new FakeTokenizer;
  options.tokenizer = tokenizer;
  return options;
}

std::vector<int32_t> Pattern(int32_t a, int32_t n) {
  std::vector<int32_t> prompt(n);
  for (int32_t i = 0; i < n; ++i) prompt[i] = (a + 31 * i) % 60;
  return prompt;
}

std::shared_ptr<SamplingParams> Params(int32_t max_tokens) {
  auto params = std::make_shared<SamplingParams>();
  params->max_tokens = max_tokens;
  params->ignore_eos = true;
  return params;
}

EngineRequest MakeRequest(std::vector<int32_t> prompt, std::shared_ptr<SamplingParams> params) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.sampling = std::move(params);
  return request;
}

void ExpectAsAlone(const CoreDriver& driver, RequestId id) {
  SCOPED_TRACE(testing::Message() << "request " << id);
  const EngineRequest& request = driver.requests.at(id);
  const Gathered& got = driver.results.at(id);
  ASSERT_TRUE(got.finished.status.ok()) << got.finished.status;
  EXPECT_EQ(got.num_started, 1);
  EXPECT_EQ(got.num_finished, 1);
  EXPECT_TRUE(got.in_order);
  const int32_t n = request.sampling->n;
  ASSERT_EQ(got.finished.choices.size(), static_cast<size_t>(n));
  int32_t completion_tokens = static_cast<int32_t>(request.resume.size());
  for (int32_t i = 0; i < n; ++i) {
    SCOPED_TRACE(testing::Message() << "choice " << i);
    const Simulated want = Simulate(request, driver.options.eos_ids, driver.options.tokenizer, i);
    const Gathered::Choice& choice = got.choices[i];
    completion_tokens += static_cast<int32_t>(want.token_ids.size());
    ASSERT_EQ(choice.token_ids, want.token_ids);
    EXPECT_EQ(got.finished.choices[i].reason, want.reason);
    EXPECT_EQ(got.finished.choices[i].stop_matched, want.stop_matched);
    std::string sent;  // by the worker that the request was resumed from
    if (!request.resume.empty()) {
      TextOut before(driver.options.tokenizer, StopMatcher(request.sampling->stop));
      int32_t index = 0;
      for (const int32_t token : request.resume) {
        sent += before.Add(token, index++ >= request.sampling->min_tokens).text;
      }
    }
    if (!request.resume.empty() && want.token_ids.empty()) {
      EXPECT_EQ(choice.text, "");  // it had ended before
    } else {
      EXPECT_EQ(sent + choice.text, want.text);
    }
    if (request.sampling->num_logprobs >= 0) {
      ASSERT_EQ(choice.logprobs.size(), want.logprobs.size());
      for (size_t k = 0; k < want.logprobs.size(); ++k) {
        EXPECT_EQ(choice.logprobs[k].token, want.token_ids[k]);
        EXPECT_EQ(choice.logprobs[k].logprob, want.logprobs[k]);
      }
    } else {
      EXPECT_TRUE(choice.logprobs.empty());
    }
    if (request.sampling->num_prompt_logprobs >= 0 && i == 0 && request.resume.empty()) {
      ASSERT_EQ(choice.prompt_logprobs.size(), request.prompt.size());
      EXPECT_EQ(choice.prompt_logprobs[0].token, request.prompt[0]);
      EXPECT_TRUE(choice.prompt_logprobs[0].top.empty());
      for (size_t k = 1; k < request.prompt.size(); ++k) {
        EXPECT_EQ(choice.prompt_logprobs[k].token, request.prompt[k]);
        EXPECT_EQ(choice.prompt_logprobs[k].logprob, want.prompt_logprobs[k - 1]);
      }
    } else {
      EXPECT_TRUE(choice.prompt_logprobs.empty());
    }
  }
  EXPECT_EQ(got.finished.prompt_tokens, static_cast<int32_t>(request.prompt.size()));
  EXPECT_EQ(got.finished.completion_tokens, completion_tokens);
}

}  // namespace quire::test
