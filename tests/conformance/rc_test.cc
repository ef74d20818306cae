// What a reliable connection moves: every operation, its completion, its bytes.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/conformance/verbs_fixture.h"

namespace verbena::conformance {
namespace {

using Verb_ibv_post_send = VerbsTest;
using Verb_ibv_post_recv = VerbsTest;
using Verb_ibv_poll_cq = VerbsTest;

void FillPattern(Memory& memory, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(random());
}

TEST_F(Verb_ibv_post_send, SendArrivesInThePostedReceive) {
  MakePair();
  FillPattern(a->buffer, 1);
  ASSERT_EQ(b->PostRecv(11, 4096, 1000), 0);
  ASSERT_EQ(a->Send(7, 100, 900), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.wr_id, 11u);
  EXPECT_EQ(wc.byte_len, 900u);
  EXPECT_EQ(wc.qp_num, b->qp->qp_num);
  EXPECT_EQ(wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV), 0u);
  EXPECT_EQ(memcmp(b->buffer.data() + 4096, a->buffer.data() + 100, 900), 0);
  EXPECT_EQ(b->buffer[4996], 0) << "written beyond the message";
  wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_SEND);
  EXPECT_EQ(wc.wr_id, 7u);
}

TEST_F(Verb_ibv_post_send, ImmediateDataArrivesInNetworkOrder) {
  MakePair();
  ASSERT_EQ(b->PostRecv(1, 0, 64), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = 0x0403'0201;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 8)}), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_IMM);
  EXPECT_EQ(wc.imm_data, 0x0403'0201u);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_post_send, WriteNeedsNoReceiveAndMakesNoCompletionThere) {
  MakePair();
  FillPattern(a->buffer, 2);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 5, 0, 10'000, *b, 20'000), 0);
  ibv_wc wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(memcmp(b->buffer.data() + 20'000, a->buffer.data(), 10'000), 0);
  EXPECT_EQ(ibv_poll_cq(b->recv_cq, 1, &wc), 0);
}

TEST_F(Verb_ibv_post_send, WriteWithImmediateTakesAReceive) {
  MakePair();
  FillPattern(a->buffer, 3);
  ASSERT_EQ(b->PostRecv(9, 0, 0), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = 77;
  wr.wr.rdma.remote_addr = b->buffer.address() + 512;
  wr.wr.rdma.rkey = b->mr->rkey;
  ASSERT_EQ(a->Post(wr, {a->Sge(0, 3000)}), 0);
  ibv_wc wc = b->WaitRecv();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.byte_len, 3000u);
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.imm_data, 77u);
  EXPECT_EQ(memcmp(b->buffer.data() + 512, a->buffer.data(), 3000), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
}

TEST_F(Verb_ibv_post_send, ReadFetchesRemoteBytes) {
  MakePair();
  FillPattern(b->buffer, 4);
  ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, 6, 3, 9'999, *b, 7), 0);
  ibv_wc wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(wc.byte_len, 9'999u);
  EXPECT_EQ(memcmp(a->buffer.data() + 3, b->buffer.data() + 7, 9'999), 0);
  EXPECT_EQ(a->buffer[2], 0);
  EXPECT_EQ(a->buffer[10'002], 0);
}

TEST_F(Verb_ibv_post_send, FetchAndAddReturnsTheOldValue) {
  MakePair();
  b->buffer.words()[1] = 40;
  ASSERT_EQ(a->Atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, *b, 8, 2), 0);
  ibv_wc wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_EQ(a->buffer.words()[0], 40u);
  EXPECT_EQ(b->buffer.words()[1], 42u);
}

TEST_F(Verb_ibv_post_send, CompareAndSwapSwapsOnlyOnMatch) {
  MakePair();
  b->buffer.words()[0] = 5;
  ASSERT_EQ(a->Atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 1, 0, *b, 0, 5, 6), 0);
  ibv_wc wc = a->WaitSend();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(a->buffer.words()[0], 5u);
  EXPECT_EQ(b->buffer.words()[0], 6u);
  ASSERT_EQ(a->Atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 2, 0, *b, 0, 5, 9), 0);
  EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a->buffer.words()[0], 6u);
  EXPECT_EQ(b->buffer.words()[0], 6u);
}

TEST_F(Verb_ibv_post_send, AtomicsOfManyClientsLoseNothing) {
  constexpr int kClients = 6, kAdds = 400;
  auto target = std::make_unique<Side>(SideOptions{.nic = 1});
  target->buffer.words()[0] = 1000;
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int client = 0; client < kClients; ++client) {
    threads.emplace_back([&, client] {
      Side side(SideOptions{.nic = client % 2});
      Side peer(SideOptions{.nic = 1});
      // The peer's QP answers; its own MR covers the same memory as every other client's.
      ibv_mr* mr = ibv_reg_mr(peer.pd, target->buffer.data(), 4096, kAllAccess);
      Connect(side, peer, {});
      for (int i = 0; i < kAdds; ++i) {
        ibv_send_wr wr = {};
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.atomic.remote_addr = target->buffer.address();
        wr.wr.atomic.rkey = mr->rkey;
        wr.wr.atomic.compare_add = 1;
        if (side.Post(wr, {side.Sge(0, 8)}) != 0) ++failures;
        if (side.WaitSend().status != IBV_WC_SUCCESS) ++failures;
      }
      if (ibv_dereg_mr(mr) != 0) ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(target->buffer.words()[0], 1000u + kClients * kAdds);
}

TEST_F(Verb_ibv_post_send, InlineDataMayBeReusedAtOnceAndNeedsNoKey) {
  MakePair();
  for (int i = 0; i < 32; ++i) ASSERT_EQ(b->PostRecv(i, i * 64, 64), 0);
  for (int i = 0; i < 32; ++i) {
    uint8_t bytes[64];
    memset(bytes, i + 1, sizeof(bytes));
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    ASSERT_EQ(a->Post(wr, {{reinterpret_cast<uint64_t>(bytes), 20, 0},
                           {reinterpret_cast<uint64_t>(bytes), 44, 0}}),
              0);
    memset(bytes, 0xff, sizeof(bytes));
  }
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(b->WaitRecv().byte_len, 64u);
    EXPECT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    for (int k = 0; k < 64; ++k) ASSERT_EQ(b->buffer[i * 64 + k], i + 1);
  }
}

TEST_F(Verb_ibv_post_send, TooMuchInlineDataIsRefused) {
  MakePair();
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a->qp, &attr, IBV_QP_CAP, &init), 0);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_INLINE;
  EXPECT_NE(a->Post(wr, {a->Sge(0, init.cap.max_inline_data + 1)}), 0);
}

TEST_F(Verb_ibv_post_send, UnsignalledWorkCompletesSilently) {
  MakePair();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(b->PostRecv(i, 0, 64), 0);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(a->Send(i, 0, 64, i % 5 == 4 ? 2u : 0u), 0);
  static_assert(IBV_SEND_SIGNALED == 2);
  for (uint64_t expected : {4u, 9u, 14u, 19u}) EXPECT_EQ(a->WaitSend().wr_id, expected);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(a->send_cq, 1, &wc), 0);
}

TEST_F(Verb_ibv_post_send, UnsignalledSlotsComeBackForEver) {
  MakePair(SideOptions{.max_send_wr = 8});
  for (uint64_t i = 0; i < 1000; ++i) {
    bool last = i % 4 == 3;
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0, last ? 2u : 0u), 0) << i;
    if (last) {
      ASSERT_EQ(a->WaitSend().wr_id, i);
    }
  }
}

TEST_F(Verb_ibv_post_send, SigAllSignalsEverything) {
  MakePair(SideOptions{.sq_sig_all = true});
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0, 0), 0);
  }
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(a->WaitSend().wr_id, i);
}

TEST_F(Verb_ibv_post_send, FullQueueIsRefusedAndNamesTheBadRequest) {
  MakePair(SideOptions{.max_send_wr = 16});
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(a->qp, &attr, IBV_QP_CAP, &init), 0);
  uint32_t limit = init.cap.max_send_wr;
  // Nobody receives: RNR retry for ever keeps the queue full.
  std::vector<ibv_send_wr> wrs(limit + 3);
  ibv_sge sge = a->Sge(0, 8);
  for (size_t i = 0; i < wrs.size(); ++i) {
    wrs[i].wr_id = i;
    wrs[i].opcode = IBV_WR_SEND;
    wrs[i].sg_list = &sge;
    wrs[i].num_sge = 1;
    wrs[i].next = i + 1 < wrs.size() ? &wrs[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a->qp, wrs.data(), &bad), ENOMEM);
  ASSERT_NE(bad, nullptr);
  EXPECT_EQ(bad->wr_id, limit);
}

TEST_F(Verb_ibv_post_send, BadRequestInTheMiddleOfAListIsNamed) {
  MakePair();
  ibv_send_wr wrs[3] = {};
  ibv_sge sge = a->Sge(0, 8);
  for (int i = 0; i < 3; ++i) {
    wrs[i].wr_id = i;
    wrs[i].opcode = IBV_WR_RDMA_WRITE;
    wrs[i].send_flags = IBV_SEND_SIGNALED;
    wrs[i].sg_list = &sge;
    wrs[i].num_sge = 1;
    wrs[i].wr.rdma.remote_addr = b->buffer.address();
    wrs[i].wr.rdma.rkey = b->mr->rkey;
    wrs[i].next = i < 2 ? &wrs[i + 1] : nullptr;
  }
  wrs[1].num_sge = 10'000;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a->qp, wrs, &bad), EINVAL);
  EXPECT_EQ(bad, &wrs[1]);
  EXPECT_EQ(a->WaitSend().wr_id, 0u) << "what stands before the bad one is posted";
}

TEST_F(Verb_ibv_post_send, FenceWaitsForEarlierReads) {
  MakePair(SideOptions{.buffer_bytes = 4 << 20});
  constexpr uint32_t kRead = 1 << 20;
  for (int round = 0; round < 20; ++round) {
    memset(a->buffer.data(), 0, a->buffer.size());
    memset(b->buffer.data(), round + 1, b->buffer.size());
    // READ fetches b's block to a; the fenced WRITE sends what the READ brought.
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, 1, 0, kRead, *b, 0), 0);
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, 2, kRead - 8, 8, *b, 2 << 20,
                      IBV_SEND_SIGNALED | IBV_SEND_FENCE),
              0);
    EXPECT_EQ(a->WaitSend().wr_id, 1u);
    EXPECT_EQ(a->WaitSend().wr_id, 2u);
    ASSERT_EQ(b->buffer[2 << 20], round + 1) << "the write overtook the read it was fenced behind";
  }
}

TEST_F(Verb_ibv_post_send, CompletionsComeInOrderAcrossOperations) {
  MakePair(SideOptions{.max_send_wr = 128, .max_recv_wr = 128});
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<ibv_wc_opcode> expected;
    for (uint64_t i = 0; i < 60; ++i) {
      switch (random() % 4) {
        case 0:
          ASSERT_EQ(b->PostRecv(i, 0, 4096), 0);
          ASSERT_EQ(a->Send(i, 0, random() % 4096), 0);
          expected.push_back(IBV_WC_SEND);
          break;
        case 1:
          ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, random() % 8192, *b, 0), 0);
          expected.push_back(IBV_WC_RDMA_WRITE);
          break;
        case 2:
          ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, i, 0, random() % 8192, *b, 0), 0);
          expected.push_back(IBV_WC_RDMA_READ);
          break;
        default:
          ASSERT_EQ(a->Atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, 0, *b, 0, 1), 0);
          expected.push_back(IBV_WC_FETCH_ADD);
      }
    }
    for (uint64_t i = 0; i < expected.size(); ++i) {
      ibv_wc wc = a->WaitSend();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.wr_id, i);
      ASSERT_EQ(wc.opcode, expected[i]);
    }
    ibv_wc wc = {};
    while (ibv_poll_cq(b->recv_cq, 1, &wc) == 1) ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  }
}

TEST_F(Verb_ibv_post_send, MoreReadsThanMaxRdAtomicWaitTheirTurn) {
  MakePair({}, ConnectOptions{.rd_atomic = 1});
  FillPattern(b->buffer, 8);
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, i, i * 1024, 1024, *b, i * 1024), 0);
  }
  for (uint64_t i = 0; i < 50; ++i) {
    ibv_wc wc = a->WaitSend();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, i);
  }
  EXPECT_EQ(memcmp(a->buffer.data(), b->buffer.data(), 50 * 1024), 0);
}

TEST_F(Verb_ibv_post_send, PsnWrapsUnnoticed) {
  MakePair({}, ConnectOptions{.mtu = IBV_MTU_256, .psn = 0xff'fffe});
  FillPattern(a->buffer, 9);
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 60'000, *b, 0), 0);
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
    ASSERT_EQ(a->Rdma(IBV_WR_RDMA_READ, i, 0, 60'000, *b, 0), 0);
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(memcmp(a->buffer.data(), b->buffer.data(), 60'000), 0);
}

// Random sizes and SGE lists against a model of b's memory.
TEST_F(Verb_ibv_post_send, RandomTransfersMatchAModelMemory) {
  MakePair(SideOptions{.max_sge = 8, .buffer_bytes = 1 << 20});
  std::mt19937 random(12345);
  FillPattern(a->buffer, 20);
  FillPattern(b->buffer, 21);
  std::vector<uint8_t> model_a(a->buffer.data(), a->buffer.data() + a->buffer.size());
  std::vector<uint8_t> model_b(b->buffer.data(), b->buffer.data() + b->buffer.size());
  for (int round = 0; round < 1500; ++round) {
    uint32_t pieces = 1 + random() % 8, total = 0;
    std::vector<ibv_sge> sges;
    // READs scatter into disjoint pieces, or the model would depend on their order.
    for (uint32_t i = 0; i < pieces; ++i) {
      size_t slot = (a->buffer.size() / 2) / 8, begin = a->buffer.size() / 2 + i * slot;
      uint32_t length = random() % (random() % 10 == 0 ? 60'000 : 700);
      sges.push_back(a->Sge(begin + random() % (slot - 60'000), length));
      total += length;
    }
    size_t remote = random() % (b->buffer.size() - total);
    bool is_read = random() % 2 == 0;
    ibv_send_wr wr = {};
    wr.opcode = is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = b->buffer.address() + remote;
    wr.wr.rdma.rkey = b->mr->rkey;
    ASSERT_EQ(a->Post(wr, sges), 0);
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS) << "round " << round;
    for (const ibv_sge& sge : sges) {
      auto local = model_a.begin() + static_cast<ptrdiff_t>(sge.addr - a->buffer.address());
      auto far = model_b.begin() + static_cast<ptrdiff_t>(remote);
      is_read ? std::copy_n(far, sge.length, local) : std::copy_n(local, sge.length, far);
      remote += sge.length;
    }
  }
  EXPECT_EQ(memcmp(model_a.data(), a->buffer.data(), a->buffer.size()), 0);
  EXPECT_EQ(memcmp(model_b.data(), b->buffer.data(), b->buffer.size()), 0);
}

TEST_F(Verb_ibv_post_recv, ScattersAcrossAllPieces) {
  MakePair();
  FillPattern(a->buffer, 30);
  ASSERT_EQ(b->PostRecv(1, {b->Sge(0, 10), b->Sge(100, 1), b->Sge(200, 3000), b->Sge(5000, 500)}),
            0);
  ASSERT_EQ(a->Send(1, 0, 3100), 0);
  EXPECT_EQ(b->WaitRecv().byte_len, 3100u);
  EXPECT_EQ(memcmp(b->buffer.data(), a->buffer.data(), 10), 0);
  EXPECT_EQ(b->buffer[100], a->buffer[10]);
  EXPECT_EQ(memcmp(b->buffer.data() + 200, a->buffer.data() + 11, 3000), 0);
  EXPECT_EQ(memcmp(b->buffer.data() + 5000, a->buffer.data() + 3011, 89), 0);
  EXPECT_EQ(b->buffer[5089], 0);
}

TEST_F(Verb_ibv_post_recv, FullQueueIsRefused) {
  MakePair(SideOptions{.max_recv_wr = 16});
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(b->qp, &attr, IBV_QP_CAP, &init), 0);
  for (uint32_t i = 0; i < init.cap.max_recv_wr; ++i) ASSERT_EQ(b->PostRecv(i, 0, 8), 0);
  EXPECT_EQ(b->PostRecv(99, 0, 8), ENOMEM);
}

TEST_F(Verb_ibv_post_recv, ReceivesAreUsedInOrder) {
  MakePair();
  for (uint64_t i = 0; i < 50; ++i) ASSERT_EQ(b->PostRecv(i, i * 8, 8), 0);
  for (uint64_t i = 0; i < 50; ++i) {
    a->buffer.words()[i] = i;
    ASSERT_EQ(a->Send(i, i * 8, 8), 0);
  }
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(b->WaitRecv().wr_id, i);
    ASSERT_EQ(b->buffer.words()[i], i);
  }
}

TEST_F(Verb_ibv_poll_cq, ReturnsSeveralAtOnceAndNeverMoreThanAsked) {
  MakePair();
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(a->Rdma(IBV_WR_RDMA_WRITE, i, 0, 8, *b, 0), 0);
  std::vector<uint64_t> seen;
  ibv_wc wc[4];
  EXPECT_TRUE(Eventually([&] {
    int n = ibv_poll_cq(a->send_cq, 4, wc);
    EXPECT_LE(n, 4);
    for (int i = 0; i < n; ++i) seen.push_back(wc[i].wr_id);
    return seen.size() >= 10;
  }));
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(ibv_poll_cq(a->send_cq, 4, wc), 0);
}

TEST_F(Verb_ibv_poll_cq, CompletionComesOnlyAfterItsBytes) {
  MakePair(SideOptions{.buffer_bytes = 2 << 20});
  for (int round = 1; round <= 200; ++round) {
    memset(a->buffer.data(), round, 1 << 20);
    ASSERT_EQ(b->PostRecv(1, 0, 1 << 20), 0);
    ASSERT_EQ(a->Send(1, 0, 1 << 20), 0);
    ASSERT_EQ(b->WaitRecv().status, IBV_WC_SUCCESS);
    auto expected = static_cast<uint8_t>(round);
    ASSERT_EQ(b->buffer[(1 << 20) - 1], expected);
    ASSERT_EQ(b->buffer[round * 5000], expected);
    ASSERT_EQ(a->WaitSend().status, IBV_WC_SUCCESS);
  }
}

}  // namespace
}  // namespace verbena::conformance
