#include "tools/cli/admin.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <utility>

#include "core/client/instance.h"
#include "core/shm/attach.h"

namespace verbena::cli {
namespace {

// A daemon that is alive answers at once; one that is stopped must not hang the CLI.
constexpr int kReplyTimeoutS = 10;

shm::Hello AdminHello() {
  shm::Hello hello = {};
  hello.magic = shm::kAbiMagic;
  hello.abi_version = shm::kAbiVersion;
  hello.kind = static_cast<uint32_t>(shm::HelloKind::kAdmin);
  hello.pid = static_cast<uint32_t>(::getpid());
  strncpy(hello.program, "verbena", sizeof hello.program - 1);
  return hello;
}

bool ParseReply(const std::string& text, json::object* reply, std::string* error) {
  boost::system::error_code code;
  json::value value = json::parse(text, code);
  if (code || !value.is_object()) {
    *error = text.empty() ? "verbenad closed the connection without an answer; its log says why."
                          : "verbenad sent an answer that is not JSON: " + text.substr(0, 200);
    return false;
  }
  *reply = std::move(value.as_object());
  if (const json::value* refused = reply->if_contains("error")) {
    *error = CellText(*refused);
    return false;
  }
  return true;
}

}  // namespace

AdminConnection& AdminConnection::operator=(AdminConnection&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

int AdminConnection::Release() { return std::exchange(fd_, -1); }

void AdminConnection::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool AdminConnection::Send(const json::object& request, std::string* error) {
  const timeval timeout = {.tv_sec = kReplyTimeoutS, .tv_usec = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  const shm::Hello hello = AdminHello();
  const std::string text = json::serialize(request);
  if (::send(fd_, &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello) ||
      ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    *error = std::string("cannot send to verbenad: ") + strerror(errno) + ".";
    return false;
  }
  return true;
}

int AdminConnection::ReceivePacket(std::string* text, std::string* error) {
  const auto receive = [this](void* to, size_t bytes, int flags) {
    ssize_t got;
    do {
      got = ::recv(fd_, to, bytes, flags);
    } while (got < 0 && errno == EINTR);
    return got;
  };
  const ssize_t size = receive(nullptr, 0, MSG_PEEK | MSG_TRUNC);
  if (size > 0) {
    const size_t before = text->size();
    text->resize(before + static_cast<size_t>(size));
    const ssize_t got = receive(text->data() + before, static_cast<size_t>(size), 0);
    text->resize(before + static_cast<size_t>(got < 0 ? 0 : got));
    if (got > 0) return 1;
  }
  if (size == 0 || errno == ECONNRESET) return 0;
  *error =
      errno == EAGAIN || errno == EWOULDBLOCK
          ? "verbenad did not answer within 10 s; is it stopped? (`verbena down` cannot end it "
            "then; kill it by its pid)."
          : std::string("cannot read from verbenad: ") + strerror(errno) + ".";
  return -1;
}

bool AdminConnection::Ask(const json::object& request, json::object* reply, std::string* error) {
  if (!Send(request, error)) return false;
  std::string text;
  int got;
  while ((got = ReceivePacket(&text, error)) == 1) {
  }
  return got == 0 && ParseReply(text, reply, error);
}

AskResult AdminConnection::Hold(std::string* error) {
  if (!Send({{"op", "hold"}}, error)) return AskResult::kNotRunning;
  std::string text;
  json::object reply;
  const int got = ReceivePacket(&text, error);
  if (got < 0) return AskResult::kFailed;
  if (ParseReply(text, &reply, error)) return AskResult::kOk;
  return text.empty() ? AskResult::kNotRunning : AskResult::kFailed;
}

AskResult AskInstance(const std::string& directory, const json::object& request,
                      json::object* reply, std::string* error) {
  AdminConnection connection(client::ConnectInstance(directory));
  if (!connection.IsOpen()) {
    if (errno == ENOENT || errno == ECONNREFUSED) return AskResult::kNotRunning;
    *error = "cannot reach the instance in " + directory + ": " + strerror(errno) + ".";
    return AskResult::kFailed;
  }
  return connection.Ask(request, reply, error) ? AskResult::kOk : AskResult::kFailed;
}

}  // namespace verbena::cli
