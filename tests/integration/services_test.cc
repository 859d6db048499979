// Worker and router over gRPC, in this process, with the engine's fake backend.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <set>
#include <thread>

#include "quire/v1/admin.grpc.pb.h"
#include "quire/v1/worker.grpc.pb.h"
#include "tests/integration/service_harness.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

std::vector<uint32_t> Ids(int n, int start = 1) {
  std::vector<uint32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(static_cast<uint32_t>((start + i * 7) % 50));
  return ids;
}

// The same worker, asked directly and through a router.
class ServicesTest : public ::testing::TestWithParam<bool> {
 protected:
  ServicesTest() : router_({worker_.address()}) {
    EXPECT_TRUE(router_.server->WaitReady(20'000));
    stub_ = InferenceStub(GetParam() ? router_.address() : worker_.address());
  }

  TestWorker worker_;
  TestRouter router_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};
INSTANTIATE_TEST_SUITE_P(Front, ServicesTest, ::testing::Bool(),
                         [](const auto& front) { return front.param ? "Router" : "Worker"; });

TEST_P(ServicesTest, StreamsStartedDeltasAndOneFinished) {
  for (const int n : {1, 3}) {
    v1::GenerateRequest request = IdsRequest(Ids(40), 30);
    request.mutable_sampling()->set_n(n);
    request.mutable_sampling()->set_temperature(1);
    request.set_request_id("my-request");
    const Answer answer = Generate(stub_.get(), request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_TRUE(answer.in_order);
    EXPECT_EQ(answer.num_started, 1);
    EXPECT_EQ(answer.num_finished, 1);
    EXPECT_EQ(answer.started.request_id(), "my-request");
    EXPECT_EQ(answer.started.prompt_tokens(), 40u);
    EXPECT_EQ(answer.started.route_reason() == "direct", !GetParam());
    EXPECT_EQ(answer.started.worker(), worker_.address());
    ASSERT_EQ(answer.finished.choices_size(), n);
    ASSERT_EQ(answer.token_ids.size(), static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(answer.finished.choices(i).finish_reason(), v1::Choice::LENGTH);
      EXPECT_EQ(answer.token_ids[static_cast<size_t>(i)].size(), 30u);
      EXPECT_FALSE(answer.text[static_cast<size_t>(i)].empty());
    }
    EXPECT_EQ(answer.finished.usage().completion_tokens(), static_cast<uint32_t>(30 * n));
    EXPECT_EQ(answer.finished.usage().prompt_tokens(), 40u);
    EXPECT_GE(answer.finished.timings().total_ms(), answer.finished.timings().ttft_ms());
  }
}

TEST_P(ServicesTest, PrefixIsFoundTheSecondTime) {
  const v1::GenerateRequest request = IdsRequest(Ids(100), 4);
  const Answer first = Generate(stub_.get(), request);
  const Answer second = Generate(stub_.get(), request);
  EXPECT_EQ(first.started.cached_tokens().device(), 0u);
  EXPECT_EQ(second.started.cached_tokens().device(), 96u);
  EXPECT_EQ(second.finished.usage().cached_tokens(), 96u);
  EXPECT_EQ(first.token_ids, second.token_ids);
  v1::GenerateRequest skipping = request;
  skipping.mutable_cache()->set_skip_prefix_cache(true);
  EXPECT_EQ(Generate(stub_.get(), skipping).started.cached_tokens().device(), 0u);
}

TEST_P(ServicesTest, LogprobsAndPromptLogprobs) {
  v1::GenerateRequest request = IdsRequest(Ids(37), 5);
  request.mutable_sampling()->set_logprobs(0);
  request.mutable_sampling()->set_prompt_logprobs(0);
  const Answer answer = Generate(stub_.get(), request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.logprobs.size(), 5u);
  ASSERT_EQ(answer.prompt_logprobs.size(), 37u);
  EXPECT_EQ(answer.prompt_logprobs[0].ByteSizeLong(), 0u);
  EXPECT_EQ(answer.prompt_logprobs[1].token_id(), request.prompt_ids(1));
}

struct BadRequest {
  const char* name;
  std::function<void(v1::GenerateRequest*)> change;
  grpc::StatusCode code;
  const char* message;  // part of it
};

std::vector<BadRequest> BadRequests() {
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto sampling = [](auto set) {
    return [set](v1::GenerateRequest* r) { set(r->mutable_sampling()); };
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  using Sampling = v1::SamplingParams;
  return {
      {"no_prompt", [](auto* r) { r->clear_prompt_ids(); }, kInvalid, "exactly one of"},
      {"two_prompts", [](auto* r) { r->set_prompt("x"); }, kInvalid, "exactly one of"},
      {"id_past_vocab", [](auto* r) { r->set_prompt_ids(2, 64); }, kInvalid,
       "prompt_ids[2] is 64, vocab_size is 64"},
      {"unknown_model", [](auto* r) { r->set_model("gpt"); }, grpc::StatusCode::NOT_FOUND, "gpt"},
      {"too_long", sampling([](Sampling* s) { s->set_max_tokens(65536); }), kInvalid,
       "max_model_len is 65536"},
      {"prompt_fills_all",
       [](auto* r) {
         for (int i = r->prompt_ids_size(); i < 65536; ++i) r->add_prompt_ids(1);
         r->mutable_sampling()->clear_max_tokens();
       },
       kInvalid, "no room for an answer"},
      {"no_tokens", sampling([](Sampling* s) { s->set_max_tokens(0); }), kInvalid,
       "max_tokens is 0"},
      {"negative_tokens", sampling([](Sampling* s) { s->set_max_tokens(-5); }), kInvalid, "-5"},
      {"temperature_nan", sampling([=](Sampling* s) { s->set_temperature(nan); }), kInvalid,
       "temperature is nan"},
      {"temperature_negative", sampling([](Sampling* s) { s->set_temperature(-1); }), kInvalid,
       "temperature is -1"},
      {"top_p_above_1", sampling([](Sampling* s) { s->set_top_p(1.5f); }), kInvalid,
       "top_p is 1.5"},
      {"top_k_negative", sampling([](Sampling* s) { s->set_top_k(-1); }), kInvalid, "top_k is -1"},
      {"min_p_nan", sampling([=](Sampling* s) { s->set_min_p(nan); }), kInvalid, "min_p"},
      {"repetition_zero", sampling([](Sampling* s) { s->set_repetition_penalty(0); }), kInvalid,
       "repetition_penalty is 0"},
      {"presence_nan", sampling([=](Sampling* s) { s->set_presence_penalty(nan); }), kInvalid,
       "presence_penalty"},
      {"frequency_infinite", sampling([](Sampling* s) { s->set_frequency_penalty(INFINITY); }),
       kInvalid, "frequency_penalty"},
      {"bias_past_vocab", sampling([](Sampling* s) { (*s->mutable_logit_bias())[64] = 1; }),
       kInvalid, "logit_bias names token 64"},
      {"bias_nan", sampling([=](Sampling* s) { (*s->mutable_logit_bias())[1] = nan; }), kInvalid,
       "logit_bias of token 1"},
      {"logprobs_21", sampling([](Sampling* s) { s->set_logprobs(21); }), kInvalid,
       "logprobs is 21"},
      {"prompt_logprobs_minus", sampling([](Sampling* s) { s->set_prompt_logprobs(-1); }), kInvalid,
       "prompt_logprobs is -1"},
      {"n_zero", sampling([](Sampling* s) { s->set_n(0); }), kInvalid, "n is 0"},
      {"n_65", sampling([](Sampling* s) { s->set_n(65); }), kInvalid, "from 1 to 64"},
      {"min_above_max", sampling([](Sampling* s) { s->set_min_tokens(9); }), kInvalid,
       "min_tokens is 9"},
      {"stop_token_past_vocab", sampling([](Sampling* s) { s->add_stop_token_ids(64); }), kInvalid,
       "stop_token_ids has 64"},
      {"ttl_negative", [](auto* r) { r->mutable_cache()->set_ttl_seconds(-1); }, kInvalid,
       "ttl_seconds is -1"},
      {"semantic_unknown",
       [](auto* r) { r->mutable_cache()->set_semantic(static_cast<v1::CachePolicy::Semantic>(7)); },
       kInvalid, "semantic is 7"},
      {"threshold", [](auto* r) { r->mutable_cache()->set_semantic_threshold(2); }, kInvalid,
       "semantic_threshold is 2"},
      {"pruning", [](auto* r) { r->mutable_kv()->set_topk_kv(64); },
       grpc::StatusCode::UNIMPLEMENTED, "topk_kv 64"},
      {"topk_negative", [](auto* r) { r->mutable_kv()->set_topk_kv(-64); }, kInvalid,
       "topk_kv is -64"},
      {"long_id", [](auto* r) { r->set_request_id(std::string(300, 'x')); }, kInvalid,
       "request_id has 300 bytes"},
  };
}

TEST_P(ServicesTest, BadRequestsAreNamed) {
  for (const BadRequest& bad : BadRequests()) {
    SCOPED_TRACE(bad.name);
    v1::GenerateRequest request = IdsRequest(Ids(8), 4);
    bad.change(&request);
    const Answer answer = Generate(stub_.get(), request);
    EXPECT_EQ(answer.status.error_code(), bad.code) << answer.status.error_message();
    EXPECT_THAT(answer.status.error_message(), HasSubstr(bad.message));
    EXPECT_EQ(answer.num_started, 0);
  }
  EXPECT_TRUE(Generate(stub_.get(), IdsRequest(Ids(8), 4)).status.ok());
  EXPECT_TRUE(Eventually([&] { return worker_.Idle(); }));
}

// What gRPC's own parser refuses without a word.
TEST_P(ServicesTest, MalformedUtf8IsNamedWithFieldAndByte) {
  const auto call = [&](const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(grpc::CreateChannel(GetParam() ? router_.address() : worker_.address(),
                                               grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    grpc::Slice slice(bytes);
    grpc::ByteBuffer in(&slice, 1), out;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/quire.v1.InferenceService/" + method, grpc::StubOptions(), &in, &out,
                   [&](grpc::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  };
  const auto field = [](int number, const std::string& value) {
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(value.size())} + value;
  };
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf0\x9f\x98", "\x80", "\xf5\x80\x80\x80",
                          "\xe2\x82", "\xf0\x90\x80", "\xff\xfe"}) {
    const grpc::Status status = call("Tokenize", field(2, std::string("ab") + bad));
    EXPECT_EQ(status.error_code(), kInvalid);
    EXPECT_EQ(status.error_message(), "text: malformed UTF-8 at byte 2");
  }
  grpc::Status status = call("Generate", field(3, "ok\x80"));
  EXPECT_EQ(status.error_code(), kInvalid);
  EXPECT_EQ(status.error_message(), "prompt: malformed UTF-8 at byte 2");
  status = call("RenderChat", field(2, field(1, "user") + field(2, "fine")) +
                                  field(2, field(1, "user") + field(2, "\xffx")));
  EXPECT_EQ(status.error_message(), "messages[1].content: malformed UTF-8 at byte 0");
  status = call("Generate", field(5, field(11, "\xc3")));
  EXPECT_EQ(status.error_message(), "sampling.stop[0]: malformed UTF-8 at byte 0");
  status = call("Generate",
                "\x1a\x7f"
                "short");
  EXPECT_EQ(status.error_code(), kInvalid);
  EXPECT_THAT(status.error_message(), HasSubstr("broken encoding"));
}

TEST_P(ServicesTest, CancelFreesEverythingAThousandTimes) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kRounds = 60;
#else
  constexpr int kRounds = 1000;
#endif
  for (int round = 0; round < kRounds; ++round) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, IdsRequest(Ids(20 + round % 40, round), 16'000));
    v1::GenerateResponse response;
    for (int i = 0; i < round % 4; ++i) ASSERT_TRUE(reader->Read(&response));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return worker_.Idle(); }));
  EXPECT_EQ(router_.server->router().num_requests(), 0);
  EXPECT_TRUE(Generate(stub_.get(), IdsRequest(Ids(8), 4)).status.ok());
}

TEST_P(ServicesTest, DeadlineEndsTheRequestOnTheWorker) {
  for (int i = 0; i < 5; ++i) {
    const Answer answer = Generate(stub_.get(), IdsRequest(Ids(20, i), 16'000), 30);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(Eventually([&] { return worker_.Idle(); }));
}

TEST_P(ServicesTest, AClientThatReadsNothingCostsBoundedWork) {
  // More than fits into the windows of the connections between worker and client.
  v1::GenerateRequest request = IdsRequest(Ids(20), 60'000);
  request.mutable_sampling()->set_logprobs(0);
  grpc::ClientContext context;
  const auto stalled = stub_->Generate(&context, request);
  // The engine pauses the request when its credits are used up: no step runs any more.
  int64_t before = -1;
  int quiet = 0;
  EXPECT_TRUE(Eventually([&] {
    const int64_t now = worker_.stats().generated_tokens;
    quiet = now == before && now > 0 ? quiet + 1 : 0;
    before = now;
    return quiet > 200;
  }));
  const int64_t paused_at = worker_.stats().generated_tokens;
  EXPECT_LT(paused_at, 50'000);
  // Others are not harmed.
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Generate(stub_.get(), IdsRequest(Ids(30, i), 50)).status.ok());
  }
  // It goes on where it stood as soon as somebody reads.
  v1::GenerateResponse response;
  int64_t tokens = 0;
  while (tokens < paused_at + 500 && stalled->Read(&response)) {
    tokens += response.delta().token_ids_size();
  }
  EXPECT_GE(tokens, paused_at + 500);
  context.TryCancel();
  EXPECT_EQ(stalled->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return worker_.Idle(); }));
}

TEST_P(ServicesTest, ManyAtOnceAnswerAsAlone) {
  constexpr int kClients = 24;
  std::vector<Answer> alone, together(kClients);
  for (int i = 0; i < kClients; ++i) {
    alone.push_back(Generate(stub_.get(), IdsRequest(Ids(5 + i * 3, i), 20 + i)));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      together[static_cast<size_t>(i)] =
          Generate(stub_.get(), IdsRequest(Ids(5 + i * 3, i), 20 + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kClients; ++i) {
    ASSERT_TRUE(together[i].status.ok()) << together[i].status.error_message();
    EXPECT_EQ(together[i].token_ids, alone[i].token_ids);
    EXPECT_EQ(together[i].text, alone[i].text);
  }
}

TEST_P(ServicesTest, ModelsTokensAndWhatIsNotThereYet) {
  grpc::ClientContext c1, c2, c3, c4;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&c1, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "fake");
  EXPECT_EQ(models.models(0).max_model_len(), 65536u);
  EXPECT_EQ(models.models(0).block_size(), 16u);
  EXPECT_EQ(models.models(0).digest(), "digest-of-fake");
  v1::EmbedResponse embedded;
  const grpc::Status embed = stub_->Embed(&c2, {}, &embedded);
  EXPECT_EQ(embed.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(embed.error_message(), HasSubstr("semantic cache"));
  v1::TokenizeRequest text;
  text.set_model("nobody");
  v1::TokenizeResponse ids;
  EXPECT_EQ(stub_->Tokenize(&c3, text, &ids).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::RenderChatRequest chat;
  chat.add_messages()->set_role("user");
  v1::RenderChatResponse rendered;
  const grpc::Status render = stub_->RenderChat(&c4, chat, &rendered);
  EXPECT_NE(render.error_code(), grpc::StatusCode::OK);
  EXPECT_THAT(render.error_message(), HasSubstr("fake"));
}

TEST(Services, RouterAndWorkerGiveTheSameAnswer) {
  TestWorker worker;
  TestRouter router({worker.address()});
  ASSERT_TRUE(router.server->WaitReady(20'000));
  const auto direct = InferenceStub(worker.address());
  const auto routed = InferenceStub(router.address());
  for (int i = 0; i < 10; ++i) {
    v1::GenerateRequest request = IdsRequest(Ids(3 + 17 * i, i), 25);
    request.mutable_sampling()->set_temperature(i % 2 == 0 ? 0.0f : 1.0f);
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
    request.mutable_sampling()->set_logprobs(0);
    const Answer a = Generate(direct.get(), request), b = Generate(routed.get(), request);
    EXPECT_EQ(a.token_ids, b.token_ids);
    EXPECT_EQ(a.text, b.text);
    ASSERT_EQ(a.finished.choices_size(), b.finished.choices_size());
    EXPECT_EQ(a.finished.choices(0).finish_reason(), b.finished.choices(0).finish_reason());
    ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
    EXPECT_EQ(a.logprobs[0].logprob(), b.logprobs[0].logprob());
  }
  // What one computed the other finds: both derive the same block keys.
  EXPECT_EQ(Generate(routed.get(), IdsRequest(Ids(64, 30), 1)).started.cached_tokens().device(),
            0u);
  EXPECT_EQ(Generate(direct.get(), IdsRequest(Ids(64, 30), 1)).started.cached_tokens().device(),
            48u);
}

TEST(Services, CancelsThatRaceTheSubmitLeaveNothing) {
  TestWorker worker;
  TestRouter router({worker.address()});
  ASSERT_TRUE(router.server->WaitReady(20'000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const auto stub = InferenceStub(router.address());
      for (int i = 0; i < 40; ++i) {
        grpc::ClientContext context;
        const auto reader = stub->Generate(&context, IdsRequest(Ids(10 + i, t), 60'000));
        for (int spin = 0; spin < i * 20; ++spin) std::this_thread::yield();
        context.TryCancel();
        reader->Finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return worker.Idle(); }));
  EXPECT_EQ(router.server->router().num_requests(), 0);
}

TEST(Services, ARouterThatGoesAwayLeavesNothingOnItsWorkers) {
  TestWorker worker;
  for (int round = 0; round < 5; ++round) {
    auto router = std::make_unique<TestRouter>(std::vector<std::string>{worker.address()});
    ASSERT_TRUE(router->server->WaitReady(20'000));
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back([address = router->address(), i] {
        const Answer answer =
            Generate(InferenceStub(address).get(), IdsRequest(Ids(20, i), 60'000));
        EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE)
            << answer.status.error_message();
      });
    }
    EXPECT_TRUE(Eventually([&] { return worker.server->worker().num_requests() == 8; }));
    router.reset();
    for (std::thread& client : clients) client.join();
    EXPECT_TRUE(Eventually([&] { return worker.Idle(); }));
  }
}

TEST(Services, SaltsOfAnotherSecretShareNothing) {
  FakeWorkerSpec spec;
  spec.cluster_secret = "secret of the worker";
  TestWorker worker(spec);
  TestRouter other({worker.address()}, 4096, "another secret, longer");
  TestRouter same({worker.address()}, 4096, "secret of the worker");
  ASSERT_TRUE(other.server->WaitReady(20'000));
  ASSERT_TRUE(same.server->WaitReady(20'000));
  const v1::GenerateRequest request = IdsRequest(Ids(64), 1);
  const auto cached = [&](const std::string& address) {
    return Generate(InferenceStub(address).get(), request).started.cached_tokens().device();
  };
  EXPECT_EQ(cached(worker.address()), 0u);
  EXPECT_EQ(cached(other.address()), 0u);
  EXPECT_EQ(cached(same.address()), 48u);
  EXPECT_EQ(cached(other.address()), 48u);
}

TEST(Services, QueueFullSaysWhenToComeAgain) {
  FakeWorkerSpec spec;
  spec.max_num_seqs = 1;
  spec.max_queue = 2;
  TestWorker worker(spec);
  const auto stub = InferenceStub(worker.address());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  Answer refused;
  for (int i = 0; i < 8; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->Generate(contexts.back().get(), IdsRequest(Ids(20, i), 16'000)));
  }
  EXPECT_TRUE(Eventually([&] {
    refused = Generate(stub.get(), IdsRequest(Ids(9), 4), 200);
    return refused.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  }));
  EXPECT_THAT(refused.status.error_details(), HasSubstr("google.rpc.RetryInfo"));
  for (auto& context : contexts) context->TryCancel();
  for (auto& reader : readers) reader->Finish();
  EXPECT_TRUE(Eventually([&] { return worker.Idle(); }));
}

TEST(Services, RouterQueueIsBounded) {
  TestWorker worker;
  TestRouter router({worker.address()}, /*max_queue=*/2);
  ASSERT_TRUE(router.server->WaitReady(20'000));
  const auto stub = InferenceStub(router.address());
  grpc::ClientContext c1, c2;
  v1::GenerateResponse response;
  const auto r1 = stub->Generate(&c1, IdsRequest(Ids(20), 16'000));
  const auto r2 = stub->Generate(&c2, IdsRequest(Ids(21), 16'000));
  ASSERT_TRUE(r1->Read(&response));
  ASSERT_TRUE(r2->Read(&response));
  const Answer refused = Generate(stub.get(), IdsRequest(Ids(9), 4));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("--max-queue is 2"));
  EXPECT_THAT(refused.status.error_details(), HasSubstr("google.rpc.RetryInfo"));
  c1.TryCancel();
  c2.TryCancel();
}

TEST(Services, StopEndsFiftyOpenStreams) {
  auto worker = std::make_unique<TestWorker>();
  auto router = std::make_unique<TestRouter>(std::vector<std::string>{worker->address()});
  ASSERT_TRUE(router->server->WaitReady(20'000));
  const auto direct = InferenceStub(worker->address());
  const auto routed = InferenceStub(router->address());
  struct Open {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  };
  std::vector<std::unique_ptr<Open>> open;
  v1::GenerateResponse response;
  for (int i = 0; i < 50; ++i) {
    open.push_back(std::make_unique<Open>());
    const auto& stub = i % 2 == 0 ? direct : routed;
    open.back()->reader = stub->Generate(&open.back()->context, IdsRequest(Ids(20, i), 16'000));
    if (i % 3 != 0) {
      ASSERT_TRUE(open.back()->reader->Read(&response));
    }
  }
  worker->server->Stop();  // returns: nothing hangs on a client that reads nothing
  for (int i = 0; i < 50; ++i) {
    Open& stream = *open[static_cast<size_t>(i)];
    while (stream.reader->Read(&response)) {
    }
    const grpc::Status status = stream.reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  }
  // Without a worker the router says so.
  EXPECT_TRUE(Eventually([&] { return !router->server->router().ready(); }));
  const Answer refused = Generate(routed.get(), IdsRequest(Ids(9), 4));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.status.error_message(), HasSubstr(worker->address()));
  router->server->Stop();
}

TEST(Services, ALostWorkersRequestsGoElsewhereOrEnd) {
  auto first = std::make_unique<TestWorker>();
  TestWorker second;
  TestRouter router({first->address(), second.address()});
  ASSERT_TRUE(Eventually([&] {
    const auto list = router.server->router().ListWorkers();
    return list.workers(0).connected() && list.workers(1).connected();
  }));
  const auto stub = InferenceStub(router.address());
  // Spread over both; each has answered with a token.
  std::set<std::string> seen;
  for (int i = 0; i < 6; ++i) {
    seen.insert(Generate(stub.get(), IdsRequest(Ids(40, i), 4)).started.worker());
  }
  EXPECT_EQ(seen.size(), 2u);
  first.reset();
  for (int i = 0; i < 6; ++i) {
    const Answer answer = Generate(stub.get(), IdsRequest(Ids(40, i), 4));
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.started.worker(), second.address());
  }
}

TEST(Services, RouterFindsAWorkerThatComesBack) {
  FakeWorkerSpec spec;
  auto worker = std::make_unique<TestWorker>(spec);
  spec.listen = worker->address();
  TestRouter router({spec.listen});
  ASSERT_TRUE(router.server->WaitReady(20'000));
  const auto stub = InferenceStub(router.address());
  EXPECT_TRUE(Generate(stub.get(), IdsRequest(Ids(40), 4)).status.ok());
  worker.reset();
  EXPECT_TRUE(Eventually([&] { return !router.server->router().ready(); }));
  worker = std::make_unique<TestWorker>(spec);
  EXPECT_TRUE(Eventually([&] { return router.server->router().ready(); }));
  EXPECT_TRUE(Generate(stub.get(), IdsRequest(Ids(40), 4)).status.ok());
}

TEST(Services, PrefixesStickToTheirWorker) {
  TestWorker a, b;
  TestRouter router({a.address(), b.address()});
  ASSERT_TRUE(Eventually([&] {
    const auto list = router.server->router().ListWorkers();
    return list.workers(0).connected() && list.workers(1).connected();
  }));
  const auto stub = InferenceStub(router.address());
  for (int i = 0; i < 4; ++i) {
    const Answer first = Generate(stub.get(), IdsRequest(Ids(160, i * 3), 2));
    const Answer again = Generate(stub.get(), IdsRequest(Ids(160, i * 3), 2));
    EXPECT_EQ(first.started.worker(), again.started.worker());
    EXPECT_EQ(again.started.cached_tokens().device(), 144u);
    EXPECT_EQ(again.started.route_reason(), "prefix: 160 of 160 tokens");
  }
  EXPECT_THAT(HttpGet(router.server->metrics_address(), "/metrics"),
              HasSubstr("quire_router_predicted_minus_actual_tokens_count 8"));
}

TEST(Services, AdminAnswers) {
  TestWorker worker;
  TestRouter router({worker.address(), "127.0.0.1:1"});
  ASSERT_TRUE(router.server->WaitReady(20'000));
  const auto admin = v1::AdminService::NewStub(
      grpc::CreateChannel(router.address(), grpc::InsecureChannelCredentials()));
  {
    grpc::ClientContext context;
    v1::ListWorkersResponse list;
    ASSERT_TRUE(admin->ListWorkers(&context, {}, &list).ok());
    ASSERT_EQ(list.workers_size(), 2);
    EXPECT_TRUE(list.workers(0).connected());
    EXPECT_EQ(list.workers(0).model().name(), "fake");
    EXPECT_FALSE(list.workers(1).connected());
    EXPECT_FALSE(list.workers(1).last_error().empty());
  }
  {
    grpc::ClientContext context;
    v1::ExplainRouteRequest request;
    *request.mutable_request() = IdsRequest(Ids(32), 4);
    v1::ExplainRouteResponse response;
    ASSERT_TRUE(admin->ExplainRoute(&context, request, &response).ok());
    EXPECT_EQ(response.worker(), worker.address());
    EXPECT_EQ(response.candidates_size(), 2);
    EXPECT_THAT(response.candidates(1).refused(), HasSubstr("not connected"));
  }
  {
    grpc::ClientContext context;
    v1::GetConfigResponse response;
    ASSERT_TRUE(admin->GetConfig(&context, {}, &response).ok());
    ASSERT_EQ(response.values_size(), 1);
    EXPECT_EQ(response.values(0).value(), "4096");
  }
  {
    grpc::ClientContext c1, c2;
    v1::DrainWorkerRequest request;
    v1::DrainWorkerResponse response;
    request.set_address("nobody:1");
    EXPECT_EQ(admin->DrainWorker(&c1, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
    request.set_address(worker.address());
    EXPECT_TRUE(admin->DrainWorker(&c2, request, &response).ok());
    const Answer refused = Generate(InferenceStub(router.address()).get(), IdsRequest(Ids(9), 4));
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(HttpGet(worker.server->metrics_address(), "/readyz"), HasSubstr("503"));
  }
}

TEST(Services, WorkerStatsAndMetrics) {
  TestWorker worker;
  const auto stub = InferenceStub(worker.address());
  for (int i = 0; i < 2; ++i) Generate(stub.get(), IdsRequest(Ids(100), 10));
  v1::GenerateRequest bad = IdsRequest(Ids(3), 10);
  bad.set_model("nobody");
  Generate(stub.get(), bad);
  ASSERT_TRUE(Eventually([&] { return worker.Idle(); }));
  const auto internal = v1::WorkerService::NewStub(
      grpc::CreateChannel(worker.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::WorkerStats stats;
  ASSERT_TRUE(internal->GetStats(&context, {}, &stats).ok());
  EXPECT_EQ(stats.worker(), worker.address());
  EXPECT_EQ(stats.prefix_hits_tokens(), 96u);
  EXPECT_EQ(stats.requests_ok(), 2u);
  EXPECT_EQ(stats.blocks_total(), 4352u);
  const std::string text = HttpGet(worker.server->metrics_address(), "/metrics");
  for (const char* line :
       {"quire_requests_total{outcome=\"ok\"} 2\n", "quire_requests_total{outcome=\"refused\"} 1\n",
        "quire_ttft_seconds_count 2\n", "quire_tpot_seconds_count 2\n",
        "quire_prefill_time_seconds_count 2\n", "quire_kv_usage_ratio{tier=\"device\"} 0",
        "quire_kv_waste_ratio 0", "quire_preemptions_total 0",
        "quire_tickets_open{reason=\"sequence\"} 0", "quire_queue_depth 0",
        "quire_prefix_cache_hits_tokens_total{tier=\"device\"} 96",
        "# TYPE quire_prefix_cache_queries_tokens_total counter",
        "# TYPE quire_cache_hit_rate gauge"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace quire::test
