#include "tests/integration/service_harness.h"

#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "common/status_macros.h"
#include "worker/engine/fake_backend.h"

namespace quire::test {

TestWorker::TestWorker(const FakeWorkerSpec& spec) {
  auto model = std::make_shared<Model>();
  model->config.name = spec.name;
  model->config.max_position = spec.max_model_len;
  model->config.vocab = kFakeVocab;
  model->config.eos_ids = {kFakeEos};
  model->tokenizer = std::make_unique<FakeTokenizer>();
  model->digest = "digest-of-" + spec.name;
  model->weights = "none";
  WorkerOptions options;
  options.model = spec.name;
  options.max_num_seqs = spec.max_num_seqs;
  options.max_queue = spec.max_queue;
  options.max_num_batched_tokens = 256;
  auto backend = std::make_unique<FakeBackend>(
      FakeBackend::Options{.num_blocks = spec.num_blocks, .num_slots = spec.max_num_seqs});
  auto worker = Worker::Assemble(options, model, std::move(backend), nullptr, &page);
  QUIRE_CHECK(worker.ok());
  auto started = WorkerServer::Start({.listen = spec.listen,
                                      .metrics_listen = "127.0.0.1:0",
                                      .cluster_secret = spec.cluster_secret,
                                      .drain_ms = spec.drain_ms},
                                     *std::move(worker), &page, nullptr);
  if (!started.ok()) std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
  QUIRE_CHECK(started.ok());
  server = *std::move(started);
}

TestWorker::~TestWorker() = default;

bool TestWorker::Idle() const {
  const EngineStats s = stats();
  return s.num_waiting == 0 && s.num_running == 0 && s.blocks_held == 0 && s.tickets_open == 0 &&
         server->worker().num_requests() == 0;
}

TestRouter::TestRouter(const std::vector<std::string>& workers, int32_t max_queue,
                       const std::string& cluster_secret) {
  RouterServerOptions options;
  options.router.workers = workers;
  options.router.max_queue = max_queue;
  options.listen = "127.0.0.1:0";
  options.http_listen = "127.0.0.1:0";
  options.metrics_listen = "127.0.0.1:0";
  options.cluster_secret = cluster_secret;
  options.drain_ms = 0;
  options.config = {{"max-queue", std::to_string(max_queue), FlagSource::kFlag}};
  auto started = RouterServer::Start(options, &page, nullptr);
  QUIRE_CHECK(started.ok());
  server = *std::move(started);
}

std::unique_ptr<v1::InferenceService::Stub> InferenceStub(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A fixed window of 64 KiB: what a client that does not read can have in its own memory.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return v1::InferenceService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

Answer Generate(v1::InferenceService::Stub* stub, const v1::GenerateRequest& request,
                int64_t timeout_ms) {
  Answer answer;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    switch (response.event_case()) {
      case v1::GenerateResponse::kStarted:
        answer.in_order &= answer.num_started == 0 && answer.token_ids.empty();
        ++answer.num_started;
        answer.started = response.started();
        break;
      case v1::GenerateResponse::kDelta: {
        answer.in_order &= answer.num_started == 1 && answer.num_finished == 0;
        const v1::Delta& delta = response.delta();
        if (answer.token_ids.size() <= delta.index()) {
          answer.token_ids.resize(delta.index() + 1);
          answer.text.resize(delta.index() + 1);
        }
        auto& ids = answer.token_ids[delta.index()];
        ids.insert(ids.end(), delta.token_ids().begin(), delta.token_ids().end());
        answer.text[delta.index()] += delta.text();
        answer.logprobs.insert(answer.logprobs.end(), delta.logprobs().begin(),
                               delta.logprobs().end());
        answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), delta.prompt_logprobs().begin(),
                                      delta.prompt_logprobs().end());
        break;
      }
      case v1::GenerateResponse::kFinished:
        answer.in_order &= answer.num_started == 1;
        ++answer.num_finished;
        answer.finished = response.finished();
        break;
      default:
        answer.in_order = false;
    }
  }
  answer.status = reader->Finish();
  return answer;
}

v1::GenerateRequest IdsRequest(const std::vector<uint32_t>& ids, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->Assign(ids.begin(), ids.end());
  request.mutable_sampling()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_seed(1);
  return request;
}

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const auto where = ParseHostPort(address);
  if (!where.ok()) return "";
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(where->host.c_str(), std::to_string(where->port).c_str(), &hints, &found) != 0) {
    return "";
  }
  const int fd = socket(found->ai_family, SOCK_STREAM, 0);
  std::string answer;
  if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n";
    if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(request.size())) {
      char buffer[8192];
      ssize_t n;
      while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
        answer.append(buffer, static_cast<size_t>(n));
      }
    }
  }
  close(fd);
  freeaddrinfo(found);
  return answer;
}

}  // namespace quire::test
