// A whole device in this process as the subject, on a cable in memory and in simulated time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "softnic/device/test_wire.h"
#include "tests/wire_scripts/subject.h"

namespace verbena::wire_scripts {

struct SimOptions {
  bool is_ipv6 = false;
  bool comes_in_batches = false;  // packets sent one behind the other arrive as by UDP_GRO
};

class SimSubject final : public Subject {
 public:
  explicit SimSubject(const SimOptions& options);
  ~SimSubject() override;

  Opened Open(const QpSpec& spec) override;
  void Close() override;
  void Fill(uint32_t at, const std::vector<std::byte>& bytes) override;
  std::vector<std::byte> Read(uint32_t at, uint32_t length) override;
  void PostRecv(uint64_t wr_id, uint32_t at, uint32_t length) override;
  void PostSend(const SendRequest& request) override;
  std::optional<Completion> AwaitCompletion() override;
  std::optional<Completion> TakeCompletion() override;
  QpState AwaitState(QpState wanted) override;
  transport::wire::PacketAddress PathToSubject() const override { return path_; }
  void Send(const std::vector<std::byte>& bytes) override;
  std::optional<Packet> AwaitPacket() override;
  std::optional<Packet> TakePacket() override;
  int64_t now_ns() const override { return world_.now.ns; }
  bool is_time_simulated() const override { return true; }

 private:
  void Settle();
  // Lets time pass until take() gives something, or nothing will ever come.
  template <typename T>
  std::optional<T> Await(std::optional<T> (SimSubject::*take)());
  shm::Sge SgeAt(uint32_t at, uint32_t length) const;
  void Connect(const QpSpec& spec);

  const SimOptions options_;
  transport::wire::PacketAddress path_;
  softnic::testing::CablePort ports_[2];  // the NIC's, and the script's end
  std::vector<uint8_t> region_;           // outlives the world, whose DMA may be under way
  softnic::testing::TestWorld world_;
  softnic::testing::TestClient* client_ = nullptr;
  softnic::testing::TestCq cq_;
  softnic::testing::TestSrq srq_;
  softnic::testing::TestMr mr_;
  softnic::testing::TestQp qp_;
  shm::Handle ah_ = 0;
  uint32_t peer_qpn_ = 0;
  bool has_srq_ = false;
};

}  // namespace verbena::wire_scripts
