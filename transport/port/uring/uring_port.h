// A port over io_uring: one multishot receive for each socket, into provided buffers; batches sent
// together. An empty Receive costs no system call.
//
// Everything a request needs runs in the thread that submitted it. So the port notices when another
// thread takes over, and lets that one receive: the first may hang.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/port/udp/udp_port.h"

namespace verbena::transport {

class UringPort final : public UdpPort {
 public:
  // nullptr: `error` says why. kNoUring: this system has no io_uring for us.
  static std::unique_ptr<UringPort> Open(const UdpPortConfig& config, UdpPortError* error);
  ~UringPort() override;

  const char* name() const override { return "io_uring"; }
  void Flush(Instant now) override;
  bool Receive(Instant now, InPacket* out) override;
  int poll_fd() const override;
  bool PrepareToSleep() override;

 private:
  struct Ring;  // io_uring's types stay in this folder
  struct Receiver;
  struct Arrival {
    uint32_t endpoint;
    uint32_t socket;  // which one of those that had this place
    uint16_t buffer;
    uint32_t length;
  };

  explicit UringPort(const UdpPortConfig& config);

  bool OpenRing(UdpPortError* error);
  // Whether this kernel has multishot receive into provided buffers (Linux 6.0). 0 or errno.
  int ProbeReceive();

  int OnSocketOpened(size_t index) override;
  void OnSocketClosing(size_t index) override;
  void OnBatchesReady() override;

  // What each call begins with: receive in this thread, and again where a receive has ended.
  void Attend();
  void TakeOver();
  bool Arm(size_t endpoint);
  void ArmAll();
  void WaitForRoom(size_t endpoint);
  void Cancel(uint64_t user_data);
  void CancelAll();
  // Precondition: the submission queue has room.
  void Prepare(SendBatch* batch);
  void Submit();
  // Handles completions; those that received wait in arrivals_. False: there was none.
  bool Reap();
  void OnCompletion(uint64_t user_data, int result, uint32_t flags);
  void OnReceived(uint32_t endpoint, uint64_t user_data, int result, uint32_t flags);
  void BeginArrival();
  void ReturnBuffer(uint16_t buffer);

  std::unique_ptr<Ring> ring_;
  std::vector<std::unique_ptr<Receiver>> receivers_;  // by endpoint
  std::deque<Arrival> arrivals_;
  ReceivedDatagram datagram_;
  int held_buffer_ = -1;  // datagram_'s
  bool unarmed_ = false;  // some receiver is
  uint32_t failures_in_a_row_ = 0;
  const void* thread_ = nullptr;  // who armed the receivers
  uint32_t unsubmitted_ = 0;
  uint32_t sends_under_way_ = 0;  // prepared, and not completed
  uint32_t holding_ = 0;          // requests that hold a socket until they complete
  bool is_later_ = false;  // a batch waits for the next turn, when the kernel may have memory
  uint64_t sends_cancelled_ = 0;  // ECANCELED: one before them in their chain was not sent
};

}  // namespace verbena::transport
