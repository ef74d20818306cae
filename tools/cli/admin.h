// The CLI's side of the admin protocol: one JSON request per connection to the attach socket.
#pragma once

#include <string>

#include "tools/cli/json.h"

namespace verbena::cli {

// kNotRunning: there is no instance, or it ended before it answered.
enum class AskResult { kOk, kNotRunning, kFailed };

// A connection to an instance's socket; closes with the object.
class AdminConnection {
 public:
  explicit AdminConnection(int fd) : fd_(fd) {}
  AdminConnection(AdminConnection&& other) noexcept : fd_(other.Release()) {}
  AdminConnection& operator=(AdminConnection&& other) noexcept;
  ~AdminConnection() { Close(); }

  bool IsOpen() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int Release();
  void Close();

  // Sends Hello and the request, reads the whole reply until the daemon closes.
  // False with a sentence in `error` when the daemon goes away, stays silent or refuses.
  bool Ask(const json::object& request, json::object* reply, std::string* error);

  // Like Ask for {"op":"hold"}: the connection stays open and keeps the instance alive until Close.
  AskResult Hold(std::string* error);

 private:
  bool Send(const json::object& request, std::string* error);
  // Appends one packet. 1: got one, 0: closed, -1: failed with `error`.
  int ReceivePacket(std::string* text, std::string* error);

  int fd_ = -1;
};

// Connects to the instance in `directory` and asks. `error` is set with kFailed.
AskResult AskInstance(const std::string& directory, const json::object& request,
                      json::object* reply, std::string* error);

}  // namespace verbena::cli
