// Completion queues: events, arming, overrun, resizing, extended polling.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <thread>
#include <utility>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_req_notify_cq = VerbsTest;
using Verb_ibv_get_cq_event = VerbsTest;
using Verb_ibv_create_cq = VerbsTest;
using Verb_ibv_resize_cq = VerbsTest;
using Verb_ibv_create_cq_ex = VerbsTest;
using Verb_ibv_start_poll = VerbsTest;

bool Readable(int fd, int timeout_ms) {
  pollfd p = {fd, POLLIN, 0};
  return poll(&p, 1, timeout_ms) == 1;
}

// Takes one event off the channel and acknowledges it. The CQ it was for.
ibv_cq* TakeEvent(Side& side) {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (!Readable(side.channel->fd, 5000)) return nullptr;
  if (ibv_get_cq_event(side.channel, &cq, &context) != 0) return nullptr;
  ibv_ack_cq_events(cq, 1);
  return cq;
}

TEST_F(Verb_ibv_req_notify_cq, OneEventPerArming) {
  MakePair(SideOptions{.with_channel = true});
  ASSERT_EQ(ibv_req_notify_cq(a->send_cq, 0), 0);
  EXPECT_FALSE(Readable(a->channel->fd, 0));
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0), 0);
  EXPECT_EQ(TakeEvent(*a), a->send_cq);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_FALSE(Readable(a->channel->fd, 30)) << "a second event without arming again";
}

TEST_F(Verb_ibv_req_notify_cq, SaysNothingUnarmed) {
  MakePair(SideOptions{.with_channel = true});
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_FALSE(Readable(a->channel->fd, 30));
}

TEST_F(Verb_ibv_req_notify_cq, SolicitedOnlyIgnoresTheRest) {
  MakePair(SideOptions{.with_channel = true});
  ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 1), 0);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b->PostRecv(i, 0, 8), 0);
  ASSERT_EQ(a->Send(1, 0, 8), 0);
  EXPECT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
  EXPECT_FALSE(Readable(b->channel->fd, 30));
  ASSERT_EQ(a->Send(2, 0, 8, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED), 0);
  EXPECT_EQ(TakeEvent(*b), b->recv_cq);
}

TEST_F(Verb_ibv_req_notify_cq, AFailureCountsAsSolicited) {
  MakePair(SideOptions{.with_channel = true});
  ASSERT_EQ(ibv_req_notify_cq(b->recv_cq, 1), 0);
  ASSERT_EQ(b->PostRecv(1, 0, 8), 0);
  ASSERT_EQ(b->ToState(IBV_QPS_ERR), 0);
  EXPECT_EQ(TakeEvent(*b), b->recv_cq);
}

// The receiver sleeps between completions. A lost wake-up leaves it asleep for good.
TEST_F(Verb_ibv_req_notify_cq, NoWakeUpIsLostUnderStress) {
  constexpr int kMessages = 20'000;
  MakePair(SideOptions{.cqe = 4096, .max_send_wr = 512, .max_recv_wr = 2048, .with_channel = true});
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(b->PostRecv(i, 0, 8), 0);
  std::atomic<bool> failed = false;
  std::thread sender([&] {
    std::mt19937 random(99);
    for (int i = 0, outstanding = 0; i < kMessages && !failed; ++i) {
      if (a->Send(i, 0, 8) != 0) failed = true;
      ++outstanding;
      // Bursts of random length, then a wait, so that every phase of arming is met.
      if (random() % 8 == 0 || outstanding > 200) {
        for (; outstanding > 0 && !failed; --outstanding) {
          if (a->WaitSend().status != IBV_WC_SUCCESS) failed = true;
        }
      }
      if (i + 1 == kMessages) {
        for (; outstanding > 0 && !failed; --outstanding) a->WaitSend();
      }
    }
  });
  int received = 0;
  while (received < kMessages && !failed) {
    if (ibv_req_notify_cq(b->recv_cq, 0) != 0) failed = true;
    ibv_wc wc[16];
    int n = 0, before = received;
    while ((n = ibv_poll_cq(b->recv_cq, 16, wc)) > 0) {
      for (int i = 0; i < n; ++i) {
        if (wc[i].status != IBV_WC_SUCCESS || b->PostRecv(1, 0, 8) != 0) failed = true;
      }
      received += n;
    }
    if (received == kMessages) break;
    if (received == before && TakeEvent(*b) == nullptr) {
      ADD_FAILURE() << "asleep with " << received << " of " << kMessages;
      failed = true;
    }
  }
  sender.join();
  EXPECT_FALSE(failed);
  EXPECT_EQ(received, kMessages);
}

TEST_F(Verb_ibv_get_cq_event, NonBlockingChannelSaysEagain) {
  MakePair(SideOptions{.with_channel = true});
  int flags = fcntl(a->channel->fd, F_GETFL);
  ASSERT_EQ(fcntl(a->channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  errno = 0;
  EXPECT_EQ(ibv_get_cq_event(a->channel, &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Verb_ibv_get_cq_event, TellsTheQueuesOfOneChannelApart) {
  MakePair(SideOptions{.with_channel = true});
  ASSERT_EQ(ibv_req_notify_cq(a->send_cq, 0), 0);
  ASSERT_EQ(ibv_req_notify_cq(a->recv_cq, 0), 0);
  ASSERT_EQ(a->PostRecv(1, 0, 8), 0);
  ASSERT_EQ(b->Send(1, 0, 8), 0);
  EXPECT_EQ(TakeEvent(*a), a->recv_cq);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  EXPECT_EQ(TakeEvent(*a), a->send_cq);
}

// As with the kernel: who polls before each get never blocks, wherever the event was in the queue.
TEST_F(Verb_ibv_get_cq_event, NothingIsLeftOfADestroyedQueue) {
  for (const bool goes_first : {true, false}) {
    MakePair(SideOptions{.with_channel = true});
    ASSERT_EQ(ibv_req_notify_cq(a->send_cq, 0), 0);
    ASSERT_EQ(ibv_req_notify_cq(a->recv_cq, 0), 0);
    ASSERT_EQ(a->PostRecv(1, 0, 8), 0);
    for (const bool receives : {goes_first, !goes_first}) {
      if (receives) {
        ASSERT_EQ(b->Send(1, 0, 8), 0);
        ASSERT_EQ(a->WaitRecv().status, IBV_WC_SUCCESS);
      } else {
        ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
        ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
      }
    }
    ASSERT_EQ(ibv_destroy_qp(std::exchange(a->qp, nullptr)), 0);
    ASSERT_EQ(ibv_destroy_cq(std::exchange(a->recv_cq, nullptr)), 0);
    EXPECT_EQ(TakeEvent(*a), a->send_cq);
    EXPECT_FALSE(Readable(a->channel->fd, 0)) << "the destroyed CQ was the first: " << goes_first;
  }
}

TEST_F(Verb_ibv_get_cq_event, AForkedChildTakesNothingFromItsParent) {
  MakePair(SideOptions{.with_channel = true});
  ASSERT_EQ(ibv_req_notify_cq(a->send_cq, 0), 0);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 1, 0, 8, *b, 0), 0);
  ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  const pid_t child = fork();
  if (child == 0) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(a->channel, &cq, &context) != -1 || errno != EIO) _exit(1);
    ibv_async_event event = {};
    if (ibv_get_async_event(a->context, &event) != -1 || errno != EIO) _exit(2);
    // As destructors of a child that calls exit() do.
    if (ibv_destroy_qp(a->qp) != 0 || ibv_destroy_cq(a->send_cq) != 0) _exit(3);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(TakeEvent(*a), a->send_cq);
}

// Programs end their event threads by pthread_cancel, also amid events.
struct CancelledReader {
  ibv_comp_channel* channel;
  std::atomic<int> taken{0};

  static void* Run(void* self) {
    auto* reader = static_cast<CancelledReader*>(self);
    for (;;) {
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      if (ibv_get_cq_event(reader->channel, &cq, &context) != 0) return nullptr;
      int before = 0;
      pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
      ibv_ack_cq_events(cq, 1);
      ++reader->taken;
      pthread_setcancelstate(before, nullptr);
    }
  }
};

TEST_F(Verb_ibv_get_cq_event, AReaderMayBeCancelledAmidEvents) {
  MakePair(SideOptions{.with_channel = true});
  std::atomic<bool> stop{false};
  std::thread traffic([&] {
    for (uint64_t i = 0; !stop; ++i) {
      if (ibv_req_notify_cq(a->send_cq, 0) != 0 ||
          a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0) != 0 ||
          a->WaitSend().status != IBV_WC_SUCCESS) {
        return;
      }
    }
  });
  CancelledReader reader{a->channel};
  for (int i = 0; i < 300; ++i) {
    const int taken = reader.taken;
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, nullptr, CancelledReader::Run, &reader), 0);
    EXPECT_TRUE(Eventually([&] { return reader.taken > taken; }));
    ASSERT_EQ(pthread_cancel(thread), 0);
    void* result = nullptr;
    ASSERT_EQ(pthread_join(thread, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
  }
  stop = true;
  traffic.join();
}

TEST_F(Verb_ibv_create_cq, OverrunRaisesCqErrAndFailsTheQp) {
  MakePair(SideOptions{.cqe = 4, .max_send_wr = 256});
  int capacity = a->send_cq->cqe;
  ASSERT_LT(capacity, 200);
  for (int i = 0; i < capacity + 8; ++i) {
    if (a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0) != 0) break;
  }
  EXPECT_TRUE(a->WaitEvent(IBV_EVENT_CQ_ERR));
  EXPECT_TRUE(Eventually([&] { return a->State() == IBV_QPS_ERR; }));
}

TEST_F(Verb_ibv_create_cq, HoldsExactlyItsEntriesWithoutOverrun) {
  MakePair(SideOptions{.cqe = 4, .max_send_wr = 256});
  int capacity = a->send_cq->cqe;
  for (int i = 0; i < capacity; ++i) {
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, i * 8), 0);
  }
  EXPECT_FALSE(a->WaitEvent(IBV_EVENT_CQ_ERR, Milliseconds(50)));
  for (int i = 0; i < capacity; ++i) EXPECT_EQ(a->WaitSend().wr_id, static_cast<uint64_t>(i));
  EXPECT_EQ(a->State(), IBV_QPS_RTS);
}

TEST_F(Verb_ibv_resize_cq, KeepsWhatIsInside) {
  MakePair(SideOptions{.cqe = 16});
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0), 0);
  EXPECT_EQ(a->WaitSend().wr_id, 0u);
  // The next operation's completion proves that all ten are in the queue.
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a->qp, &attr, IBV_QP_STATE, &init), 0);
  ASSERT_EQ(ibv_resize_cq(a->send_cq, 1000), 0);
  EXPECT_GE(a->send_cq->cqe, 1000);
  for (uint64_t i = 1; i < 10; ++i) EXPECT_EQ(a->WaitSend().wr_id, i);
  for (uint64_t i = 10; i < 60; ++i) ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0), 0);
  for (uint64_t i = 10; i < 60; ++i) EXPECT_EQ(a->WaitSend().wr_id, i);
}

TEST_F(Verb_ibv_resize_cq, RefusesToLoseCompletions) {
  MakePair(SideOptions{.cqe = 64});
  for (uint64_t i = 0; i < 40; ++i) ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0), 0);
  // When the READ's bytes are here, everything before it has completed.
  b->buffer.words()[1] = 0x77;
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, 40, 64, 8, *b, 8), 0);
  volatile uint64_t* landed = &a->buffer.words()[8];
  ASSERT_TRUE(Eventually([&] { return *landed == 0x77; }));
  EXPECT_EQ(a->WaitSend().wr_id, 0u);
  EXPECT_EQ(ibv_resize_cq(a->send_cq, 8), EINVAL);
  for (uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(a->WaitSend().wr_id, i);
}

TEST_F(Verb_ibv_create_cq_ex, ReadsStandardFields) {
  a = std::make_unique<Side>(SideOptions{});
  b = std::make_unique<Side>(SideOptions{.nic = 1});
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 64;
  attr.wc_flags = IBV_WC_STANDARD_FLAGS;
  ibv_cq_ex* cq = ibv_create_cq_ex(b->context, &attr);
  ASSERT_NE(cq, nullptr);
  ASSERT_EQ(ibv_destroy_qp(b->qp), 0);
  ibv_qp_init_attr init = {};
  init.send_cq = ibv_cq_ex_to_cq(cq);
  init.recv_cq = init.send_cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {8, 8, 1, 1, 0};
  b->qp = ibv_create_qp(b->pd, &init);
  ASSERT_NE(b->qp, nullptr);
  Connect(*a, *b, {});
  ibv_poll_cq_attr poll_attr = {};
  EXPECT_EQ(ibv_start_poll(cq, &poll_attr), ENOENT);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(b->PostRecv(40 + i, 0, 64), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  for (uint32_t i = 0; i < 3; ++i) {
    wr.imm_data = i;
    ASSERT_EQ(a->Post(wr, {a->Sge(0, 10 + i)}), 0);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
  ASSERT_TRUE(Eventually([&] { return ibv_start_poll(cq, &poll_attr) == 0; }));
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cq->wr_id, 40 + i);
    EXPECT_EQ(cq->status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
    EXPECT_EQ(ibv_wc_read_byte_len(cq), 10 + i);
    EXPECT_EQ(ibv_wc_read_imm_data(cq), i);
    EXPECT_EQ(ibv_wc_read_qp_num(cq), b->qp->qp_num);
    EXPECT_TRUE(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM);
    if (i < 2) {
      ASSERT_TRUE(Eventually([&] { return ibv_next_poll(cq) == 0; }));
    }
  }
  EXPECT_EQ(ibv_next_poll(cq), ENOENT);
  ibv_end_poll(cq);
  ASSERT_EQ(ibv_destroy_qp(b->qp), 0);
  b->qp = nullptr;
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

TEST_F(Verb_ibv_create_cq_ex, RefusesFieldsItDoesNotHave) {
  a = std::make_unique<Side>(SideOptions{});
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = 64;
  attr.wc_flags = uint64_t{1} << 60;
  EXPECT_EQ(ibv_create_cq_ex(a->context, &attr), nullptr);
}

}  // namespace
}  // namespace verbena::conformance
