// quire-worker, quire-router and quire-cachesvc as real processes, with a tiny real model.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>

#include "quire/v1/cache.grpc.pb.h"
#include "tests/integration/service_harness.h"
#include "tests/integration/test_process.h"
#include "tests/support/test_archive.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> WorkerArgs(const std::string& model,
                                    const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"--model",           model,         "--listen",  "127.0.0.1:0",
                                   "--metrics-listen",  "127.0.0.1:0", "--threads", "1",
                                   "--kv-cache-memory", "16MiB"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<std::string> RouterArgs(const std::string& workers) {
  return {"--workers",     workers,       "--listen",         "127.0.0.1:0",
          "--http-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"};
}

bool WaitForModels(v1::InferenceService::Stub* stub) {
  return Eventually([&] {
    grpc::ClientContext context;
    v1::ListModelsResponse models;
    return stub->ListModels(&context, {}, &models).ok() && models.models_size() == 1;
  });
}

TEST(Processes, WorkerAndRouterServeTextAndEndOnSigterm) {
  for (const char* name : {"tiny_qwen3", "gguf_good"}) {
    SCOPED_TRACE(name);
    const TempDir directory;
    TestProcess worker("quire-worker", WorkerArgs(ExtractCaseModel(name, directory)));
    const std::string worker_address = worker.WaitReady("grpc");
    ASSERT_NE(worker_address, "") << worker.Stderr();
    TestProcess router("quire-router", RouterArgs(worker_address));
    const std::string router_address = router.WaitReady("grpc");
    ASSERT_NE(router_address, "") << router.Stderr();
    const auto direct = InferenceStub(worker_address);
    const auto routed = InferenceStub(router_address);
    ASSERT_TRUE(WaitForModels(routed.get()));

    v1::GenerateRequest request;
    request.set_prompt("the hen in the inn, on another thing");
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_max_tokens(24);
    request.mutable_sampling()->set_ignore_eos(true);
    request.mutable_sampling()->set_logprobs(2);
    const Answer a = Generate(direct.get(), request), b = Generate(routed.get(), request);
    ASSERT_TRUE(a.status.ok()) << a.status.error_message();
    ASSERT_TRUE(b.status.ok()) << b.status.error_message();
    EXPECT_EQ(a.token_ids, b.token_ids);
    EXPECT_EQ(a.text, b.text);
    ASSERT_EQ(a.logprobs.size(), 24u);
    ASSERT_EQ(b.logprobs.size(), 24u);
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(a.logprobs[i].SerializeAsString(), b.logprobs[i].SerializeAsString());
    }
    // The router's tokenizer is the worker's.
    for (const std::string text : {"the hen", "  the", "\xc3\xa9 12"}) {
      v1::TokenizeRequest tokenize;
      tokenize.set_text(text);
      v1::TokenizeResponse ids[2];
      v1::DetokenizeResponse back;
      grpc::ClientContext c1, c2, c3;
      ASSERT_TRUE(direct->Tokenize(&c1, tokenize, &ids[0]).ok());
      ASSERT_TRUE(routed->Tokenize(&c2, tokenize, &ids[1]).ok());
      EXPECT_EQ(ids[0].SerializeAsString(), ids[1].SerializeAsString());
      v1::DetokenizeRequest detokenize;
      *detokenize.mutable_token_ids() = ids[1].token_ids();
      ASSERT_TRUE(routed->Detokenize(&c3, detokenize, &back).ok());
      EXPECT_EQ(back.text(), text);
    }
    EXPECT_THAT(HttpGet(router.WaitReady("metrics"), "/readyz"), HasSubstr("200 OK"));
    EXPECT_THAT(HttpGet(router.WaitReady("http"), "/metrics"), HasSubstr("quire_ttft_seconds"));
    EXPECT_THAT(HttpGet(worker.WaitReady("metrics"), "/metrics"),
                HasSubstr("quire_prefix_cache_queries_tokens_total"));

    // Fifty open streams do not keep either from ending.
    struct Open {
      grpc::ClientContext context;
      std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    };
    std::vector<std::unique_ptr<Open>> open;
    request.mutable_sampling()->clear_max_tokens();
    for (int i = 0; i < 50; ++i) {
      open.push_back(std::make_unique<Open>());
      open.back()->reader =
          (i % 2 == 0 ? direct : routed)->Generate(&open.back()->context, request);
    }
    worker.Signal(SIGTERM);
    router.Signal(SIGTERM);
    EXPECT_EQ(worker.Wait(), 0) << worker.Stderr();
    EXPECT_EQ(router.Wait(), 0) << router.Stderr();
    v1::GenerateResponse response;
    for (const auto& stream : open) {
      while (stream->reader->Read(&response)) {
      }
      // Some may have ended before the signal; none hangs and none ends without a reason.
      const grpc::Status status = stream->reader->Finish();
      EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE)
          << status.error_code() << " " << status.error_message();
    }
  }
}

TEST(Processes, WrongConfigurationIsListedAtOnceAndEndsWith2) {
  const TempDir directory;
  const std::string file = directory.path() + "/worker.yaml";
  std::ofstream(file) << "max_num_seqs: many\nblok_size: 16\n";
  TestProcess worker("quire-worker", {"--device", "cuda:0", "--block-size", "17", "--cache-ttl",
                                      "-1", "--nonsense", "--config", file});
  EXPECT_EQ(worker.Wait(), 2);
  for (const char* part :
       {"--model is needed", "--device is 'cuda:0'", "--block-size is 17", "--cache-ttl is '-1'",
        "unknown flag --nonsense", "max_num_seqs is 'many'", "blok_size: unknown key"}) {
    EXPECT_THAT(worker.Stderr(), HasSubstr(part));
  }
  TestProcess router("quire-router", {"--workers", "a:1,a:1,b", "--max-queue", "0"});
  EXPECT_EQ(router.Wait(), 2);
  for (const char* part : {"--max-queue is '0'", "--workers has a:1 twice", "--workers has 'b'"}) {
    EXPECT_THAT(router.Stderr(), HasSubstr(part));
  }
}

TEST(Processes, AWorkerThatCannotLoadSaysWhy) {
  TestProcess worker("quire-worker", WorkerArgs("/no/such/model"));
  EXPECT_EQ(worker.WaitReady("grpc"), "");
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.Stderr(), HasSubstr("/no/such/model"));
  const TempDir directory;
  TestProcess too_long("quire-worker", WorkerArgs(ExtractCaseModel("tiny_qwen3", directory),
                                                  {"--max-model-len", "16000000"}));
  EXPECT_EQ(too_long.Wait(), 2);
  EXPECT_THAT(too_long.Stderr(), HasSubstr("--max-model-len is 16000000"));
}

TEST(Processes, CachesvcAnswersGetStats) {
  TestProcess cachesvc("quire-cachesvc",
                       {"--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"});
  const std::string address = cachesvc.WaitReady("grpc");
  ASSERT_NE(address, "") << cachesvc.Stderr();
  const auto stub =
      v1::CacheService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext c1, c2;
  v1::CacheStats stats;
  EXPECT_TRUE(stub->GetStats(&c1, {}, &stats).ok());
  v1::LookupResponse held;
  EXPECT_EQ(stub->Lookup(&c2, {}, &held).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(HttpGet(cachesvc.WaitReady("metrics"), "/metrics"),
              HasSubstr("quire_cachesvc_pages"));
  cachesvc.Signal(SIGINT);
  EXPECT_EQ(cachesvc.Wait(), 0);
}

}  // namespace
}  // namespace quire::test
