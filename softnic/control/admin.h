// The CLI's side of the socket: one JSON request, one JSON reply.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "softnic/control/network_taps.h"
#include "softnic/control/server.h"
#include "softnic/device/device.h"

namespace verbena::softnic {

class AdminConnection : public std::enable_shared_from_this<AdminConnection> {
 public:
  AdminConnection(ControlServer* server, boost::asio::posix::stream_descriptor socket);
  ~AdminConnection();
  void Start();

 private:
  void OnRequest(const std::string& text);
  void Status();
  void Show(const std::string& kind);
  void AddNics(uint32_t total);
  void Faults(const std::string& action, const std::string& text);
  void Record(RecordingKind kind, const std::string& action, const std::string& path,
              uint64_t limit_bytes);
  void Event(const std::string& event, EventTarget target);
  void Down();
  void Hold();
  // Runs `work` on the leader and then sends what it made, rendered on the control thread.
  template <typename Result>
  void AskLeader(std::function<Result()> work, std::function<std::string(Result)> render);
  void Reply(std::string text);
  void Error(const std::string& text);
  void SendMore();
  void Finish();

  ControlServer* server_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer deadline_;
  std::string reply_;
  size_t sent_ = 0;
  bool is_stop_wanted_ = false;
  bool is_holding_ = false;
};

}  // namespace verbena::softnic
