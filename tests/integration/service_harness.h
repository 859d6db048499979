// Workers and routers in this process, on free ports, for tests of the services.
#ifndef QUIRE_TESTS_INTEGRATION_SERVICE_HARNESS_H_
#define QUIRE_TESTS_INTEGRATION_SERVICE_HARNESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quire/v1/inference.grpc.pb.h"
#include "router/router_server.h"
#include "worker/server/worker_server.h"

namespace quire::test {

// A worker over the engine's fake backend: tokens are a function of prompt, sampler slot and
// history, so equal requests give equal answers, and no weights are needed.
struct FakeWorkerSpec {
  std::string name = "fake";
  int32_t num_blocks = 4352;
  int32_t max_model_len = 65536;
  int32_t max_num_seqs = 64;
  int32_t max_queue = 4096;
  std::string listen = "127.0.0.1:0";
  std::string cluster_secret;
  int64_t drain_ms = 0;
};

class TestWorker {
 public:
  explicit TestWorker(const FakeWorkerSpec& spec = {});
  ~TestWorker();
  const std::string& address() const { return server->address(); }
  EngineStats stats() const { return server->worker().stats(); }
  bool Idle() const;  // nothing waits, runs or is held

  MetricsPage page;
  std::unique_ptr<WorkerServer> server;
};

class TestRouter {
 public:
  explicit TestRouter(const std::vector<std::string>& workers, int32_t max_queue = 4096,
                      const std::string& cluster_secret = "");
  const std::string& address() const { return server->address(); }

  MetricsPage page;
  std::unique_ptr<RouterServer> server;
};

std::unique_ptr<v1::InferenceService::Stub> InferenceStub(const std::string& address);

// What one Generate gave.
struct Answer {
  grpc::Status status;
  int num_started = 0, num_finished = 0;
  bool in_order = true;  // started, deltas, finished
  v1::Started started;
  v1::Finished finished;
  std::vector<std::vector<uint32_t>> token_ids;  // by choice
  std::vector<std::string> text;                 // by choice
  std::vector<v1::TokenLogprobs> logprobs, prompt_logprobs;
};
Answer Generate(v1::InferenceService::Stub* stub, const v1::GenerateRequest& request,
                int64_t timeout_ms = 20'000);

v1::GenerateRequest IdsRequest(const std::vector<uint32_t>& ids, int32_t max_tokens);

// Polls until `condition` holds; false after 20 s.
bool Eventually(const std::function<bool()>& condition);

// The body of GET http://address/path.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace quire::test

#endif  // QUIRE_TESTS_INTEGRATION_SERVICE_HARNESS_H_
