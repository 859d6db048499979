#include "common/metrics/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/config/flags.h"
#include "common/metrics/metrics.h"
#include "common/status_macros.h"

namespace quire {
namespace {

constexpr size_t kMaxConnections = 64;
constexpr size_t kMaxHeaderBytes = 8192;
constexpr TimeUs kMaxAgeUs = 5'000'000;

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

struct Connection {
  int fd = -1;
  TimeUs deadline_us = 0;
  std::string in;
  std::string out;  // not empty: the answer is being written
  size_t written = 0;
};

std::string Answer(const HttpResponse& response, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", response.code, " ", Reason(response.code),
                      "\r\nContent-Type: ", response.content_type,
                      "\r\nContent-Length: ", response.body.size(), "\r\nConnection: close\r\n\r\n",
                      with_body ? response.body : "");
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(int listen_fd, int wake_fd, Handler handler)
      : listen_fd_(listen_fd), wake_fd_(wake_fd), handler_(std::move(handler)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Impl() {
    const uint64_t one = 1;
    (void)!write(wake_fd_, &one, sizeof(one));
    thread_.join();
    for (const Connection& c : connections_) close(c.fd);
    close(listen_fd_);
    close(wake_fd_);
  }

 private:
  void Run() {
    std::vector<pollfd> fds;
    while (true) {
      fds = {{wake_fd_, POLLIN, 0}, {listen_fd_, POLLIN, 0}};
      for (const Connection& c : connections_) {
        fds.push_back({c.fd, static_cast<short>(c.out.empty() ? POLLIN : POLLOUT), 0});
      }
      if (poll(fds.data(), fds.size(), connections_.empty() ? -1 : 1000) < 0 && errno != EINTR) {
        return;
      }
      if (fds[0].revents != 0) return;
      size_t i = 2;
      const TimeUs now = clock_.NowUs();
      for (auto it = connections_.begin(); it != connections_.end(); ++i) {
        const bool alive = (fds[i].revents == 0 || Serve(&*it)) && now < it->deadline_us;
        if (!alive) close(it->fd);
        it = alive ? std::next(it) : connections_.erase(it);
      }
      if (fds[1].revents != 0) Accept(now);
    }
  }

  void Accept(TimeUs now) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (connections_.size() >= kMaxConnections) {
      close(fd);
      return;
    }
    connections_.push_back({fd, now + kMaxAgeUs, "", "", 0});
  }

  // False when the connection is done with.
  bool Serve(Connection* c) {
    if (c->out.empty()) {
      char buffer[2048];
      const ssize_t n = recv(c->fd, buffer, sizeof(buffer), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n > 0) c->in.append(buffer, static_cast<size_t>(n));
      if (c->in.find("\r\n\r\n") != std::string::npos) {
        c->out = Handle(c->in);
      } else if (c->in.size() > kMaxHeaderBytes) {
        c->out = Answer({431, "text/plain", "the header is over 8192 bytes\n"}, true);
      } else {
        return true;
      }
    }
    const ssize_t n =
        send(c->fd, c->out.data() + c->written, c->out.size() - c->written, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    c->written += static_cast<size_t>(n);
    if (c->written < c->out.size()) return true;
    shutdown(c->fd, SHUT_WR);
    return false;
  }

  std::string Handle(const std::string& request) {
    const std::string line = request.substr(0, request.find("\r\n"));
    const size_t first = line.find(' ');
    const size_t second = line.find(' ', first == std::string::npos ? first : first + 1);
    if (first == std::string::npos || second == std::string::npos ||
        line.compare(second + 1, 5, "HTTP/") != 0) {
      return Answer({400, "text/plain", "not an HTTP request line\n"}, true);
    }
    const std::string method = line.substr(0, first);
    std::string path = line.substr(first + 1, second - first - 1);
    path = path.substr(0, path.find('?'));
    if (method != "GET" && method != "HEAD") {
      return Answer({405, "text/plain", "only GET and HEAD\n"}, true);
    }
    return Answer(handler_(path), method == "GET");
  }

  const int listen_fd_, wake_fd_;
  const Handler handler_;
  const SteadyClock clock_;
  std::list<Connection> connections_;  // the thread's
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              Handler handler) {
  ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found)) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": ", gai_strerror(error)));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool bound =
      fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 64) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!bound) {
    if (fd >= 0) close(fd);
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", strerror(error)));
  }
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length);
  auto server = std::unique_ptr<HttpServer>(new HttpServer);
  server->port_ =
      ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':') + 1), server->port_);
  server->impl_ = std::make_unique<Impl>(fd, eventfd(0, EFD_CLOEXEC), std::move(handler));
  return server;
}

HttpServer::~HttpServer() = default;

HttpServer::Handler ObservabilityHandler(const MetricsPage* page,
                                         std::function<std::string()> ready) {
  return [page, ready = std::move(ready)](const std::string& path) -> HttpResponse {
    if (path == "/metrics") {
      return {200, "text/plain; version=0.0.4; charset=utf-8", page->Text()};
    }
    if (path == "/healthz") return {200, "text/plain; charset=utf-8", "ok\n"};
    if (path == "/readyz") {
      const std::string reason = ready();
      if (reason.empty()) return {200, "text/plain; charset=utf-8", "ready\n"};
      return {503, "text/plain; charset=utf-8", reason + "\n"};
    }
    if (path.rfind("/v1/", 0) == 0) {
      return {501, "application/json",
              R"({"error":{"message":"the HTTP API is not served yet; use gRPC",)"
              R"("type":"not_implemented"}})"
              "\n"};
    }
    return {404, "text/plain; charset=utf-8", "not found: /metrics, /healthz, /readyz\n"};
  };
}

}  // namespace quire
