#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>

#include "common/metrics/http_server.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Sends `request` and reads to the end of the connection.
std::string Talk(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return "no connection";
  for (const char c : request) {  // byte by byte: the server has to join the pieces
    if (send(fd, &c, 1, MSG_NOSIGNAL) != 1) break;
  }
  std::string answer;
  char buffer[4096];
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0)
    answer.append(buffer, static_cast<size_t>(n));
  close(fd);
  return answer;
}

TEST(MetricsPage, JoinsFamiliesOfOneName) {
  MetricsPage page;
  page.AddCounter("quire_requests_total", "Requests.", {{"outcome", "ok"}}).Increment();
  page.AddCounter("quire_requests_total", "Requests.", {{"outcome", "ok"}}).Increment();
  page.AddHistogram("quire_ttft_seconds", "Time.", {0.1, 1}).Observe(0.5);
  const auto reader = [](const char* worker) {
    return [worker](std::vector<MetricSample>* out) {
      out->push_back(
          {MetricSample::Kind::kGauge, "quire_queue_depth", "Waiting.", {{"worker", worker}}, 3});
    };
  };
  std::shared_ptr<void> a = page.AddReader(reader("a"));
  const std::shared_ptr<void> b = page.AddReader(reader("b"));
  std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("quire_requests_total{outcome=\"ok\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("quire_ttft_seconds_bucket{le=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("quire_queue_depth{worker=\"a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("quire_queue_depth{worker=\"b\"} 3\n"));
  EXPECT_EQ(text.find("# TYPE quire_queue_depth"), text.rfind("# TYPE quire_queue_depth"));
  a.reset();
  text = page.Text();
  EXPECT_THAT(text, Not(HasSubstr("worker=\"a\"")));
}

TEST(SlidingRatio, ForgetsWhatIsOlderThanTheWindow) {
  constexpr int64_t kSecond = 1'000'000;
  SlidingRatio ratio(300 * kSecond);
  ratio.Update(kSecond, 0, 0);
  EXPECT_TRUE(std::isnan(ratio.ratio()));
  ratio.Update(2 * kSecond, 50, 100);
  EXPECT_DOUBLE_EQ(ratio.ratio(), 0.5);
  for (int t = 3; t <= 200; ++t) ratio.Update(t * kSecond, 50, 100);
  EXPECT_DOUBLE_EQ(ratio.ratio(), 0.5);
  for (int t = 201; t <= 320; ++t) ratio.Update(t * kSecond, 140, 200);
  EXPECT_DOUBLE_EQ(ratio.ratio(), 0.9);  // the first hundred is out
  for (int t = 321; t <= 600; ++t) ratio.Update(t * kSecond, 140, 200);
  EXPECT_TRUE(std::isnan(ratio.ratio()));
}

TEST(HttpServer, PathsMethodsAndFaults) {
  MetricsPage page;
  page.AddCounter("quire_requests_total", "Requests.").Increment();
  std::string reason = "loading the model";
  auto server =
      HttpServer::Start("127.0.0.1:0", ObservabilityHandler(&page, [&] { return reason; }));
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_THAT(Talk(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
              HasSubstr("quire_requests_total 1"));
  EXPECT_THAT(Talk(port, "HEAD /metrics?a=b HTTP/1.1\r\n\r\n"), Not(HasSubstr("total 1")));
  EXPECT_THAT(Talk(port, "GET /healthz HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Talk(port, "GET /readyz HTTP/1.1\r\n\r\n"), HasSubstr("503 Service Unavailable"));
  reason = "";
  EXPECT_THAT(Talk(port, "GET /readyz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Talk(port, "GET /nothing HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Talk(port, "GET /v1/models HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 501"));
  EXPECT_THAT(Talk(port, "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Talk(port, "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Talk(port, "GET / HTTP/1.1\r\nX: " + std::string(9000, 'x')),
              ::testing::AnyOf(StartsWith("HTTP/1.1 431"), ::testing::IsEmpty()));
}

TEST(HttpServer, RefusesATakenPort) {
  const auto handler = [](const std::string&) { return HttpResponse{}; };
  auto first = HttpServer::Start("127.0.0.1:0", handler);
  ASSERT_TRUE(first.ok());
  auto second = HttpServer::Start((*first)->address(), handler);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace quire
