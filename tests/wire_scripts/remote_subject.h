// A verbs program on another host (subject.py) as the subject: asked over TCP, while its NIC is
// spoken to by real packets from a UDP socket.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/wire_scripts/subject.h"

namespace verbena::wire_scripts {

struct RemoteOptions {
  std::string host;  // where subject.py listens
  uint16_t port = 0;
  std::string local;   // the address that the script's packets come from
  std::string remote;  // of the subject's NIC
};

class RemoteSubject final : public Subject {
 public:
  // Throws std::runtime_error, as all that concerns sockets does.
  explicit RemoteSubject(const RemoteOptions& options);
  ~RemoteSubject() override;
  RemoteSubject(const RemoteSubject&) = delete;
  RemoteSubject& operator=(const RemoteSubject&) = delete;

  Opened Open(const QpSpec& spec) override;
  void Close() override;
  void Fill(uint32_t at, const std::vector<std::byte>& bytes) override;
  std::vector<std::byte> Read(uint32_t at, uint32_t length) override;
  void PostRecv(uint64_t wr_id, uint32_t at, uint32_t length) override;
  void PostSend(const SendRequest& request) override;
  std::optional<Completion> AwaitCompletion() override { return PollCompletion(true); }
  std::optional<Completion> TakeCompletion() override { return PollCompletion(false); }
  QpState AwaitState(QpState wanted) override;
  transport::wire::PacketAddress PathToSubject() const override { return path_; }
  void Send(const std::vector<std::byte>& bytes) override;
  std::optional<Packet> AwaitPacket() override;
  std::optional<Packet> TakePacket() override { return Receive(0); }
  int64_t now_ns() const override;
  bool is_time_simulated() const override { return false; }

 private:
  using Reply = std::map<std::string, std::string>;

  void OpenSocket(const std::string& local);
  // One line there and one back.
  Reply Ask(const std::string& line);
  std::optional<Completion> PollCompletion(bool waits);
  std::optional<Packet> Receive(int limit_ms);

  transport::wire::PacketAddress path_;
  int control_ = -1, socket_ = -1;
  std::string unread_;  // of the control connection
};

}  // namespace verbena::wire_scripts
