// Contexts, PDs, regions and device memory of other processes, by a duplicate of cmd_fd and
// handles.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

constexpr size_t kDmBytes = 4'096;
constexpr unsigned kDmAccess = kAllAccess | IBV_ACCESS_ZERO_BASED;

// What an exporter tells with its cmd_fd.
struct Exported {
  uint32_t pd, mr, dm, dm_mr;
  uint64_t address;
};

bool SendFd(int socket, const Exported& handles, int fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part = {const_cast<Exported*>(&handles), sizeof(handles)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return sendmsg(socket, &message, 0) == sizeof(handles);
}

// The fd, or -1.
int ReceiveFd(int socket, Exported* handles) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part = {handles, sizeof(*handles)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(*handles)) return -1;
  int fd = -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return fd;
}

// A process that runs `body(socket)`. To be made before this one opens a device.
class Process {
 public:
  explicit Process(const std::function<int(int)>& body) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      _exit(body(ends[1]));
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Process() {
    Kill();
    close(socket_);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int Wait() {
    int status = 0;
    pid_t pid = std::exchange(pid_, -1);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int socket() const { return socket_; }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

// What the tests export: a side's PD and region, and device memory with a region.
struct Exporter {
  explicit Exporter(Side& of) : side(of) {
    ibv_alloc_dm_attr attr = {};
    attr.length = kDmBytes;
    dm = ibv_alloc_dm(side.context, &attr);
    dm_mr = dm == nullptr ? nullptr : ibv_reg_dm_mr(side.pd, dm, 0, kDmBytes, kDmAccess);
  }
  ~Exporter() {
    if (dm_mr != nullptr) ibv_dereg_mr(dm_mr);
    if (dm != nullptr) ibv_free_dm(dm);
  }
  bool IsReady() const { return dm_mr != nullptr; }
  Exported Handles() const {
    return {side.pd->handle, side.mr->handle, dm->handle, dm_mr->handle, side.buffer.address()};
  }

  Side& side;
  ibv_dm* dm = nullptr;
  ibv_mr* dm_mr = nullptr;
};

// The same, imported, with a QP of its own in the PD.
struct Importer {
  Importer(int cmd_fd, const Exported& handles) {
    context = ibv_import_device(cmd_fd);
    if (context == nullptr) return;
    pd = ibv_import_pd(context, handles.pd);
    if (pd == nullptr) return;
    mr = ibv_import_mr(pd, handles.mr);
    dm_mr = ibv_import_mr(pd, handles.dm_mr);
    dm = ibv_import_dm(context, handles.dm);
    cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    ibv_qp_init_attr attr = {};
    attr.send_cq = attr.recv_cq = cq;
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {16, 16, 4, 4, 0};
    qp = ibv_create_qp(pd, &attr);
    ibv_query_gid(context, 1, kGidIndex, &gid);
  }
  ~Importer() {
    if (qp != nullptr) ibv_destroy_qp(qp);
    if (cq != nullptr) ibv_destroy_cq(cq);
    if (dm != nullptr) ibv_unimport_dm(dm);
    if (dm_mr != nullptr) ibv_unimport_mr(dm_mr);
    if (mr != nullptr) ibv_unimport_mr(mr);
    if (pd != nullptr) ibv_unimport_pd(pd);
    if (context != nullptr) ibv_close_device(context);
  }
  bool IsReady() const {
    return mr != nullptr && dm_mr != nullptr && dm != nullptr && qp != nullptr;
  }

  bool Connect(Side& peer) {
    const ConnectOptions options;
    return ConnectTo(peer.qp->qp_num, peer.gid()) && peer.ToInit() == 0 &&
           peer.ToRtr(qp->qp_num, gid, options) == 0 && peer.ToRts(options) == 0;
  }
  bool ConnectTo(uint32_t qpn, const ibv_gid& peer) {
    const ConnectOptions options;
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = kRemoteAccess;
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0) {
      return false;
    }
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = options.mtu;
    attr.dest_qp_num = qpn;
    attr.rq_psn = options.psn;
    attr.max_dest_rd_atomic = options.rd_atomic;
    attr.min_rnr_timer = options.min_rnr_timer;
    attr.ah_attr = AddressOf(peer);
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0) {
      return false;
    }
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = options.psn;
    attr.timeout = options.timeout;
    attr.retry_cnt = options.retry_cnt;
    attr.rnr_retry = options.rnr_retry;
    attr.max_rd_atomic = options.rd_atomic;
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0;
  }
  // The status of a WRITE from `sge`, or -1.
  int Write(const ibv_sge& sge, uint64_t address, uint32_t rkey) {
    ibv_send_wr wr = {};
    ibv_send_wr* bad = nullptr;
    ibv_sge list = sge;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &list;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = rkey;
    ibv_wc wc = {};
    if (ibv_post_send(qp, &wr, &bad) != 0) return -1;
    return Eventually([&] { return ibv_poll_cq(cq, 1, &wc) == 1; }) ? wc.status : -1;
  }

  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_mr* dm_mr = nullptr;
  ibv_dm* dm = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_gid gid = {};
};

using Verb_ibv_import_device = VerbsTest;
using Verb_ibv_import_pd = VerbsTest;
using Verb_ibv_unimport_pd = VerbsTest;
using Verb_ibv_import_mr = VerbsTest;
using Verb_ibv_unimport_mr = VerbsTest;
using Verb_ibv_import_dm = VerbsTest;
using Verb_ibv_unimport_dm = VerbsTest;

TEST_F(Verb_ibv_import_device, RefusesWhatIsNoContext) {
  int pipe_ends[2], socket_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socket_ends), 0);
  const int null = open("/dev/null", O_RDWR);
  for (int fd : {-1, 1'000'000, pipe_ends[0], socket_ends[0], null}) {
    errno = 0;
    EXPECT_EQ(ibv_import_device(fd), nullptr) << fd;
    EXPECT_EQ(errno, EINVAL) << fd;
  }
  EXPECT_EQ(fcntl(null, F_GETFD), 0) << "it stays the caller's";
  for (int fd : {pipe_ends[0], pipe_ends[1], socket_ends[0], socket_ends[1], null}) close(fd);
}

TEST_F(Verb_ibv_import_device, IsTheSameDeviceWithTheFdAsItsOwn) {
  ibv_context* context = OpenNic(1);
  const int fd = dup(context->cmd_fd);
  ibv_context* imported = ibv_import_device(fd);
  ASSERT_NE(imported, nullptr) << strerror(errno);
  EXPECT_EQ(imported->device, context->device);
  EXPECT_EQ(imported->cmd_fd, fd);
  EXPECT_NE(imported->async_fd, context->async_fd);
  EXPECT_EQ(imported->num_comp_vectors, context->num_comp_vectors);
  EXPECT_EQ(ibv_close_device(imported), 0);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  ibv_pd* pd = ibv_alloc_pd(context);
  EXPECT_NE(pd, nullptr) << "the exporter's goes on";
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

// The open file is the context: it lives as long as somebody has it.
TEST_F(Verb_ibv_import_device, OutlivesTheExportersClosing) {
  ibv_context* context = OpenNic(0);
  ibv_pd* pd = ibv_alloc_pd(context);
  const uint32_t handle = pd->handle;
  const int fd = dup(context->cmd_fd);
  EXPECT_EQ(ibv_close_device(context), 0);
  ibv_context* imported = ibv_import_device(fd);
  ASSERT_NE(imported, nullptr) << strerror(errno);
  ibv_pd* again = ibv_import_pd(imported, handle);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(again), 0);
  EXPECT_EQ(ibv_close_device(imported), 0);
}

TEST_F(Verb_ibv_import_device, ByTwoAndByWayOfAnImporter) {
  a = std::make_unique<Side>(SideOptions{});
  Exporter exporter(*a);
  ASSERT_TRUE(exporter.IsReady());
  auto first = std::make_unique<Importer>(dup(a->context->cmd_fd), exporter.Handles());
  ASSERT_TRUE(first->IsReady()) << strerror(errno);
  Importer second(dup(first->context->cmd_fd), exporter.Handles());
  ASSERT_TRUE(second.IsReady()) << strerror(errno);
  // What an importer makes is of the same context.
  ibv_pd* pd = ibv_alloc_pd(first->context);
  ibv_pd* seen = ibv_import_pd(second.context, pd->handle);
  ASSERT_NE(seen, nullptr);
  first.reset();  // does not take it away
  EXPECT_EQ(ibv_dealloc_pd(seen), 0);
  ibv_unimport_pd(pd);
  uint32_t word = 77;
  ASSERT_EQ(ibv_memcpy_to_dm(exporter.dm, 0, &word, 4), 0);
  ASSERT_EQ(ibv_memcpy_from_dm(&word, second.dm, 0, 4), 0);
  EXPECT_EQ(word, 77u);
}

TEST_F(Verb_ibv_import_device, ByAnotherProcess) {
  Process importer([](int socket) {
    Exported handles = {}, peer = {};
    const int fd = ReceiveFd(socket, &handles);
    Importer own(fd, handles);
    if (!own.IsReady()) return 10;
    ibv_gid peer_gid;
    if (recv(socket, &peer, sizeof(peer), 0) != sizeof(peer)) return 11;
    if (recv(socket, &peer_gid, sizeof(peer_gid), 0) != sizeof(peer_gid)) return 12;
    if (!own.ConnectTo(peer.pd, peer_gid)) return 13;
    const Exported mine = {own.qp->qp_num, 0, 0, 0, 0};
    if (send(socket, &mine, sizeof(mine), 0) != sizeof(mine)) return 14;
    char go;
    if (recv(socket, &go, 1, 0) != 1) return 15;
    // From the exporter's memory, from device memory, and from its own.
    if (own.Write({handles.address, 8, own.mr->lkey}, peer.address, peer.mr) != 0) return 16;
    uint64_t word = 0x2222;
    if (ibv_memcpy_to_dm(own.dm, 8, &word, 8) != 0) return 17;
    if (own.Write({8, 8, own.dm_mr->lkey}, peer.address + 8, peer.mr) != 0) return 18;
    Memory memory(4'096);
    memory.words()[0] = 0x3333;
    ibv_mr* own_mr = ibv_reg_mr(own.pd, memory.data(), memory.size(), kAllAccess);
    if (own_mr == nullptr) return 19;
    if (own.Write({memory.address(), 8, own_mr->lkey}, peer.address + 16, peer.mr) != 0) return 20;
    return ibv_dereg_mr(own_mr) == 0 ? 0 : 21;
  });
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  Exporter exporter(*a);
  ASSERT_TRUE(exporter.IsReady());
  a->buffer.words()[0] = 0x1111;
  ASSERT_TRUE(SendFd(importer.socket(), exporter.Handles(), a->context->cmd_fd));
  const Exported peer = {b->qp->qp_num, b->mr->rkey, 0, 0, b->buffer.address()};
  const ibv_gid gid = b->gid();
  ASSERT_EQ(send(importer.socket(), &peer, sizeof(peer), 0), ssize_t{sizeof(peer)});
  ASSERT_EQ(send(importer.socket(), &gid, sizeof(gid), 0), ssize_t{sizeof(gid)});
  Exported theirs = {};
  ASSERT_EQ(recv(importer.socket(), &theirs, sizeof(theirs), 0), ssize_t{sizeof(theirs)});
  ASSERT_EQ(b->ToInit(), 0);
  ASSERT_EQ(b->ToRtr(theirs.pd, a->gid(), {}), 0);
  ASSERT_EQ(b->ToRts({}), 0);
  ASSERT_EQ(send(importer.socket(), "g", 1, 0), 1);
  EXPECT_EQ(importer.Wait(), 0);
  EXPECT_EQ(b->buffer.words()[0], 0x1111u);
  EXPECT_EQ(b->buffer.words()[1], 0x2222u);
  EXPECT_EQ(b->buffer.words()[2], 0x3333u);
}

// The exporter's end takes its memory away, and leaves the rest to who holds the context: be it
// imported before or after.
TEST_F(Verb_ibv_import_device, OutlivesTheExportersDeath) {
  for (bool is_imported_before : {true, false}) {
    SCOPED_TRACE(is_imported_before);
    Process exporter([](int socket) {
      Side side(SideOptions{});
      Exporter all(side);
      if (!all.IsReady()) return 1;
      uint64_t word = 0x4444;
      if (ibv_memcpy_to_dm(all.dm, 0, &word, 8) != 0) return 2;
      if (!SendFd(socket, all.Handles(), side.context->cmd_fd)) return 3;
      pause();
      return 0;
    });
    Exported handles = {};
    const int fd = ReceiveFd(exporter.socket(), &handles);
    ASSERT_GE(fd, 0);
    if (!is_imported_before) exporter.Kill();
    Importer own(fd, handles);
    ASSERT_TRUE(own.IsReady()) << strerror(errno);
    exporter.Kill();
    b = std::make_unique<Side>(SideOptions{.nic = 1});
    ASSERT_TRUE(own.Connect(*b));
    EXPECT_EQ(own.Write({0, 8, own.dm_mr->lkey}, b->buffer.address(), b->mr->rkey), 0);
    EXPECT_EQ(b->buffer.words()[0], 0x4444u);
    EXPECT_NE(own.Write({handles.address, 8, own.mr->lkey}, b->buffer.address(), b->mr->rkey), 0);
  }
}

TEST_F(Verb_ibv_import_device, ImportersDeathLeavesTheContext) {
  Process importer([](int socket) {
    Exported handles = {};
    const int fd = ReceiveFd(socket, &handles);
    Importer own(fd, handles);
    if (!own.IsReady() || send(socket, "r", 1, 0) != 1) return 1;
    pause();
    return 0;
  });
  MakePair();
  {
    Exporter exporter(*a);
    ASSERT_TRUE(exporter.IsReady());
    ASSERT_TRUE(SendFd(importer.socket(), exporter.Handles(), a->context->cmd_fd));
    char byte;
    ASSERT_EQ(recv(importer.socket(), &byte, 1, 0), 1);
    importer.Kill();
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
  // What the importer had in the PD goes with it.
  ibv_pd* pd = a->pd;
  ASSERT_EQ(ibv_destroy_qp(a->qp), 0);
  ASSERT_EQ(ibv_dereg_mr(a->mr), 0);
  EXPECT_TRUE(Eventually([&] { return ibv_dealloc_pd(pd) == 0; }));
  a->qp = nullptr;
  a->mr = nullptr;
  a->pd = nullptr;
}

TEST_F(Verb_ibv_import_pd, WrongHandleIsRefused) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_context* imported = ibv_import_device(dup(a->context->cmd_fd));
  ASSERT_NE(imported, nullptr);
  ibv_pd* gone = ibv_alloc_pd(a->context);
  const uint32_t stale = gone->handle;
  ASSERT_EQ(ibv_dealloc_pd(gone), 0);
  for (uint32_t handle : {0u, stale, a->pd->handle + 1, ~0u}) {
    errno = 0;
    EXPECT_EQ(ibv_import_pd(imported, handle), nullptr) << handle;
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(ibv_close_device(imported), 0);
}

TEST_F(Verb_ibv_unimport_pd, LeavesThePd) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_context* imported = ibv_import_device(dup(a->context->cmd_fd));
  ASSERT_NE(imported, nullptr);
  ibv_pd* pd = ibv_import_pd(imported, a->pd->handle);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(pd->context, imported);
  EXPECT_EQ(pd->handle, a->pd->handle);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY) << "it is the exporter's too";
  ibv_unimport_pd(pd);
  ibv_mr* mr = ibv_reg_mr(a->pd, a->buffer.data(), 64, kAllAccess);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_close_device(imported), 0);
}

TEST_F(Verb_ibv_import_mr, HasKeysAndLengthAndNoAddress) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_context* imported = ibv_import_device(dup(a->context->cmd_fd));
  ASSERT_NE(imported, nullptr);
  ibv_pd* pd = ibv_import_pd(imported, a->pd->handle);
  ibv_mr* mr = ibv_import_mr(pd, a->mr->handle);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->context, imported);
  EXPECT_EQ(mr->pd, pd);
  EXPECT_EQ(mr->handle, a->mr->handle);
  EXPECT_EQ(mr->lkey, a->mr->lkey);
  EXPECT_EQ(mr->rkey, a->mr->rkey);
  EXPECT_EQ(mr->length, a->mr->length);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kAllAccess),
            IBV_REREG_MR_ERR_INPUT);
  errno = 0;
  EXPECT_EQ(ibv_import_mr(pd, a->mr->handle + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_pd* other = ibv_alloc_pd(imported);
  EXPECT_EQ(ibv_import_mr(other, a->mr->handle), nullptr) << "of another PD";
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  ibv_unimport_mr(mr);
  ibv_unimport_pd(pd);
  EXPECT_EQ(ibv_close_device(imported), 0);
}

TEST_F(Verb_ibv_unimport_mr, LeavesTheRegionWhichWhoeverHasItMayDestroy) {
  MakePair();
  ibv_context* imported = ibv_import_device(dup(b->context->cmd_fd));
  ASSERT_NE(imported, nullptr);
  ibv_pd* pd = ibv_import_pd(imported, b->pd->handle);
  ibv_unimport_mr(ibv_import_mr(pd, b->mr->handle));
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  ibv_mr* mr = ibv_import_mr(pd, b->mr->handle);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(b->mr), ENOENT);
  ibv_unimport_mr(b->mr);
  b->mr = nullptr;
  ibv_unimport_pd(pd);
  EXPECT_EQ(ibv_close_device(imported), 0);
}

TEST_F(Verb_ibv_import_dm, IsTheSameMemory) {
  a = std::make_unique<Side>(SideOptions{});
  Exporter exporter(*a);
  ASSERT_TRUE(exporter.IsReady());
  ibv_context* imported = ibv_import_device(dup(a->context->cmd_fd));
  ASSERT_NE(imported, nullptr);
  errno = 0;
  EXPECT_EQ(ibv_import_dm(imported, exporter.dm->handle + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_dm* dm = ibv_import_dm(imported, exporter.dm->handle);
  ASSERT_NE(dm, nullptr) << strerror(errno);
  EXPECT_EQ(dm->handle, exporter.dm->handle);
  uint32_t word = 55;
  ASSERT_EQ(ibv_memcpy_to_dm(dm, kDmBytes - 4, &word, 4), 0);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, kDmBytes, &word, 4), EFAULT);
  word = 0;
  ASSERT_EQ(ibv_memcpy_from_dm(&word, exporter.dm, kDmBytes - 4, 4), 0);
  EXPECT_EQ(word, 55u);
  EXPECT_EQ(ibv_free_dm(dm), EBUSY) << "the exporter's region is on it";
  ibv_unimport_dm(dm);
  EXPECT_EQ(ibv_close_device(imported), 0);
}

TEST_F(Verb_ibv_unimport_dm, LeavesTheMemory) {
  a = std::make_unique<Side>(SideOptions{});
  Exporter exporter(*a);
  ASSERT_TRUE(exporter.IsReady());
  ibv_context* imported = ibv_import_device(dup(a->context->cmd_fd));
  ASSERT_NE(imported, nullptr);
  for (int i = 0; i < 3; ++i) {
    ibv_dm* dm = ibv_import_dm(imported, exporter.dm->handle);
    ASSERT_NE(dm, nullptr);
    ibv_unimport_dm(dm);
  }
  uint32_t word = 5;
  EXPECT_EQ(ibv_memcpy_to_dm(exporter.dm, 0, &word, 4), 0);
  EXPECT_EQ(ibv_close_device(imported), 0);
}

}  // namespace
}  // namespace verbena::conformance
