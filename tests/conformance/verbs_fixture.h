// Fixture of the conformance tests: contexts on two NICs, queue pairs, connection, polling.
//
// The programs are compiled against rdma-core's headers and linked with the system's libibverbs;
// they run with ours in LD_LIBRARY_PATH, on an instance with at least two NICs. Suites are named
// Verb_<verb>, because docs/verbs-support.md is generated from their results.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace verbena::conformance {

inline constexpr int kGidIndex = 1;  // the IPv4-mapped GID
inline constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr unsigned kRemoteAccess = kAllAccess & ~unsigned{IBV_ACCESS_LOCAL_WRITE};
inline constexpr uint32_t kQKey = 0x1111'1111;

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
inline constexpr Milliseconds kPatience{5000};

// Calls `condition` until it is true or `limit` is over.
bool Eventually(const std::function<bool()>& condition, Milliseconds limit = kPatience);

// Page-aligned memory that no other allocation shares.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint8_t* data() { return data_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data_); }
  size_t size() const { return bytes_; }
  uint8_t& operator[](size_t i) { return data_[i]; }
  uint64_t* words() { return reinterpret_cast<uint64_t*>(data_); }

 private:
  uint8_t* data_;
  size_t bytes_;
};

struct SideOptions {
  int nic = 0;
  ibv_qp_type type = IBV_QPT_RC;
  int cqe = 256;
  uint32_t max_send_wr = 64;
  uint32_t max_recv_wr = 64;
  uint32_t max_sge = 4;
  uint32_t max_inline_bytes = 64;
  size_t buffer_bytes = 64 * 1024;
  unsigned mr_access = kAllAccess;
  bool sq_sig_all = false;
  bool with_srq = false;
  bool with_channel = false;
  bool with_td = false;   // all of it in a parent domain with a thread domain
  uint64_t send_ops = 0;  // non-zero: ibv_create_qp_ex with these
  // All of it in a parent domain made of this, but for `pd` and `td`; not with with_td.
  const ibv_parent_domain_init_attr* domain = nullptr;
};

struct ConnectOptions {
  unsigned qp_access = kRemoteAccess;
  ibv_mtu mtu = IBV_MTU_1024;
  uint8_t timeout = 10;  // 4.096 µs · 2^10 ≈ 4 ms
  uint8_t retry_cnt = 3;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 12;  // 0.64 ms
  uint8_t rd_atomic = 8;
  uint32_t psn = 0xffff'f0;  // a few packets before the wrap
};

// One side: context, PD, MR over a buffer, CQs, QP. Destroyed in reverse order.
class Side {
 public:
  explicit Side(const SideOptions& options);
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  // --- connection -------------------------------------------------------------------------------
  int ToInit(unsigned access = kRemoteAccess);
  int ToRtr(uint32_t peer_qpn, const ibv_gid& peer_gid, const ConnectOptions& options);
  int ToRts(const ConnectOptions& options);
  int ToState(ibv_qp_state state);
  ibv_qp_state State() const;
  ibv_gid gid() const { return gid_; }

  // --- posting: 0 or what the verb returned
  // -------------------------------------------------------
  int PostRecv(uint64_t wr_id, size_t offset, uint32_t length);
  int PostRecv(uint64_t wr_id, const std::vector<ibv_sge>& sges);
  int Post(ibv_send_wr wr, const std::vector<ibv_sge>& sges);
  // Send work requests with one SGE of the own buffer; signalled.
  int Send(uint64_t wr_id, size_t offset, uint32_t length, unsigned flags = IBV_SEND_SIGNALED);
  int Rdma(ibv_wr_opcode opcode, uint64_t wr_id, size_t offset, uint32_t length, const Side& peer,
           size_t peer_offset, unsigned flags = IBV_SEND_SIGNALED);
  int Atomic(ibv_wr_opcode opcode, uint64_t wr_id, size_t offset, const Side& peer,
             size_t peer_offset, uint64_t compare_add, uint64_t swap = 0);
  ibv_sge Sge(size_t offset, uint32_t length) const;

  // --- completions and events -----------------------------------------------------------------
  // Waits for exactly one completion of `cq`.
  ibv_wc Wait(ibv_cq* cq, Milliseconds limit = kPatience);
  ibv_wc WaitSend(Milliseconds limit = kPatience) { return Wait(send_cq, limit); }
  ibv_wc WaitRecv(Milliseconds limit = kPatience) { return Wait(recv_cq, limit); }
  // Waits for an asynchronous event of this type, acknowledges it. False: none came.
  bool WaitEvent(ibv_event_type type, Milliseconds limit = kPatience);

  SideOptions options;
  Memory buffer;
  ibv_context* context = nullptr;
  ibv_pd* base_pd = nullptr;  // what `pd` is a parent domain of, if it is one
  ibv_td* td = nullptr;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* send_cq = nullptr;
  ibv_cq* recv_cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;

 private:
  void CreateDomain();
  ibv_cq* CreateCq();
  void CreateQp();

  ibv_gid gid_{};
};

// An address vector towards `gid`.
ibv_ah_attr AddressOf(const ibv_gid& gid);
ibv_context* OpenNic(int nic);
ibv_td* NewTd(ibv_context* context);
// A parent domain of `pd`, with a thread domain or without. nullptr with errno.
ibv_pd* ParentOf(ibv_pd* pd, ibv_td* td = nullptr);
// A CQ in a parent domain. nullptr with errno.
ibv_cq_ex* NewCqIn(ibv_context* context, ibv_pd* parent_domain, int cqe,
                   ibv_comp_channel* channel = nullptr);
// Whether `condition` on a CQ, an fd or memory stays false for `span`: for "nothing must happen".
bool NeverWithin(const std::function<bool()>& condition, Milliseconds span = Milliseconds(30));

class VerbsTest : public ::testing::Test {
 protected:
  // Makes side a on NIC 0 and b on NIC 1, connected and in RTS.
  void MakePair(SideOptions options = {}, ConnectOptions connect = {});
  void MakePair(SideOptions a_options, SideOptions b_options, ConnectOptions connect);
  void MakeUdPair(SideOptions options = {});
  static void Connect(Side& a, Side& b, const ConnectOptions& options);

  std::unique_ptr<Side> a, b;
};

}  // namespace verbena::conformance
