// What a program sees does not depend on where its peer is: the same random work is carried out
// between two QPs of one instance, and between two hosts that exchange packets, one by one and in
// batches. No packet is lost. Only time may tell, and what has no meaning once something failed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "softnic/device/test_direct.h"
#include "softnic/device/test_wire.h"

namespace verbena::softnic::testing {
namespace {

using Op = shm::WrOpcode;

class LocalEnds final : public EndsInOneDevice {
 public:
  LocalEnds(const Terms& with, bool moves_now) : EndsInOneDevice(with, 0) {
    world.dma.moves_now = moves_now;
    for (uint32_t nic : {0u, 1u}) {
      NicConfig config = TestWorld::ConfigOf(nic);
      config.mtu_bytes = terms.MtuBytes();
      world.device->AddNic(config);
    }
    TestClient& first = world.AddClient(0);
    Open(first, world.AddClient(1));
  }
};

// Bases in this order: what DMA may be under way to outlives the hosts.
class WireEnds final : public Ends, private WiredHosts {
 public:
  WireEnds(const Terms& with, bool moves_now, bool in_batches)
      : Ends(with), WiredHosts(in_batches, terms.MtuBytes()) {
    for (TestWorld* world : {a.get(), b.get()}) world->dma.moves_now = moves_now;
    Open(alice, bob);
  }
  uint64_t PacketsSent() const { return ports[0].counters().sent_packets; }

 private:
  void SettleAll() override { SettleHosts(); }
  Instant NextTimer() override { return NextTimeout(); }
  void PassTime(Instant time) override { PassHostsTimeTo(time); }
  Instant Now() const override { return a->now; }
};

// --- what may differ -----------------------------------------------------------------------------

std::vector<uint8_t> PayloadOf(const End& end, const Work& work) {
  std::vector<uint8_t> bytes;
  for (const Range& piece : work.pieces) {
    bytes.insert(bytes.end(), end.memory + piece.at, end.memory + piece.at + piece.length);
  }
  return bytes;
}

// True: each byte of `pieces` is what it is locally, or what the message would have put there.
bool IsPartly(const End& local, const End& wire, const std::vector<Range>& pieces,
              const std::vector<uint8_t>& message) {
  size_t i = 0;
  for (const Range& piece : pieces) {
    for (uint32_t at = piece.at; at < piece.at + piece.length; ++at, ++i) {
      if (wire.memory[at] == local.memory[at]) continue;
      if (i >= message.size() || wire.memory[at] != message[i]) return false;
    }
  }
  return true;
}

// ... and from now on is what it is locally. True: something differed.
bool MakeSame(const End& local, const End& wire, const std::vector<Range>& pieces) {
  bool differed = false;
  for (const Range& piece : pieces) {
    differed |= std::memcmp(wire.memory + piece.at, local.memory + piece.at, piece.length) != 0;
    std::memcpy(wire.memory + piece.at, local.memory + piece.at, piece.length);
  }
  return differed;
}

// A message that fails amid its packets has written those before; locally it is one PDU, and fails
// before any byte is written. A long READ is asked for in parts over packets, and those before the
// one that is refused have come. What the buffers of a failed receive or READ hold, and the target
// of a request that was not carried out, is undefined.
class Excuses {
 public:
  Excuses(const Burst& burst, const Ends& local) : burst_(burst), local_(local) {}

  void Apply(const Ends& wire) {
    for (int from : {0, 1}) {
      const End &there = local_.ends[1 - from], &over_wire = wire.ends[1 - from];
      for (const Work& work : burst_.works[from]) {
        if (MayHaveWritten(from, work)) {
          Excuse(there, over_wire, {{work.remote_at, work.length}},
                 PayloadOf(local_.ends[from], work));
        }
        if (work.opcode == Op::kRdmaRead && work.wrong == Wrong::kBeyondRegion) {
          Excuse(local_.ends[from], wire.ends[from], work.pieces,
                 {there.memory + work.remote_at, there.memory + kEndBytes});
        }
      }
      for (const Wc& wc : there.receives) {
        if (wc.status == WcStatus::kSuccess || wc.status == WcStatus::kWrFlushErr) continue;
        for (const Work& work : burst_.works[from]) {
          if (!work.IsSend() || terms().service == Service::kUd) continue;  // one packet
          Excuse(there, over_wire, there.posted.at(wc.wr_id).pieces,
                 PayloadOf(local_.ends[from], work));
        }
      }
    }
  }
  int used() const { return used_; }

 private:
  const Terms& terms() const { return local_.terms; }
  // A WRITE with immediate takes its receive with its last packet.
  bool MayHaveWritten(int from, const Work& work) const {
    if (work.opcode != Op::kRdmaWriteWithImm || terms().service == Service::kUd) return false;
    if (work.wrong != Wrong::kNothing && work.wrong != Wrong::kNoReceive) return false;
    if (terms().service == Service::kUc) {
      const std::vector<Wc>& told = local_.ends[1 - from].receives;
      return std::none_of(told.begin(), told.end(), [&work](const Wc& wc) {
        return wc.status == WcStatus::kSuccess && wc.imm == work.imm;
      });
    }
    const std::vector<Wc>& told = local_.ends[from].sends;
    return std::any_of(told.begin(), told.end(), [&work](const Wc& wc) {
      return wc.status == WcStatus::kRnrRetryExcErr && wc.wr_id == work.wr_id;
    });
  }
  void Excuse(const End& local, const End& wire, const std::vector<Range>& pieces,
              const std::vector<uint8_t>& message) {
    if (IsPartly(local, wire, pieces, message)) used_ += MakeSame(local, wire, pieces) ? 1 : 0;
  }

  const Burst& burst_;
  const Ends& local_;
  int used_ = 0;
};

// --- the same work, here and there ---------------------------------------------------------------

struct Seen {
  std::set<WcStatus> statuses;
  uint64_t packets = 0, completions = 0;
  int excuses = 0;
};

Terms TermsOf(Service service, uint32_t seed) {
  std::mt19937 random(seed);
  auto below = [&random](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Terms terms;
  terms.service = service;
  terms.path_mtu = static_cast<uint8_t>(1 + seed % 5);
  if (seed % 6 == 0) terms.peer_path_mtu = static_cast<uint8_t>(1 + seed / 6 % 5);
  // Most programs' PSNs wrap around soon.
  for (uint32_t& psn : terms.first_psns) {
    psn = below(4) == 0 ? below(1 << 24) : 0xff'ffff - below(40);
  }
  terms.has_srq = below(3) == 0;
  terms.works_max = below(3) == 0 ? 1 : 6;
  terms.wrong_every = 12;
  return terms;
}

class LocalWire : public ::testing::TestWithParam<Service> {
 protected:
  static constexpr int kBursts = 24;

  // False: they differ.
  bool Run(uint32_t seed) {
    const Terms terms = TermsOf(GetParam(), seed);
    const bool moves_now = seed / 2 % 2 == 0;
    LocalEnds local(terms, moves_now);
    std::unique_ptr<WireEnds> wires[] = {std::make_unique<WireEnds>(terms, seed % 2 == 0, false),
                                         std::make_unique<WireEnds>(terms, seed % 2 == 0, true)};
    ProgramMaker program(seed, terms);
    for (int i = 0; i < kBursts; ++i) {
      const Burst burst = program.Draw();
      local.CarryOut(burst);
      Excuses excuses(burst, local);
      for (auto& wire : wires) {
        wire->CarryOut(burst);
        excuses.Apply(*wire);
      }
      seen_.excuses += excuses.used();
      for (const End& end : local.ends) {
        for (const Wc& wc : end.all) seen_.statuses.insert(wc.status);
        seen_.completions += end.all.size();
      }
      for (int at : {0, 1}) Compare(at, local, *wires[0], *wires[1]);
      if (HasFailure()) {
        ADD_FAILURE() << "seed " << seed << ", burst " << i << ": " << Describe(burst, terms);
        return false;
      }
      if (burst.wrong != Wrong::kNothing) Renew(local, *wires[0], *wires[1]);
    }
    for (auto& wire : wires) seen_.packets += wire->PacketsSent();
    return true;
  }

  static void Compare(int at, Ends& local, Ends& one_by_one, Ends& in_batches) {
    const std::vector<std::string> told = local.Tell(at, Told::kWhatIsPromised);
    const End& here = local.ends[at];
    for (Ends* wire : {&one_by_one, &in_batches}) {
      const char* how = wire == &one_by_one ? "one by one" : "in batches";
      EXPECT_EQ(told, wire->Tell(at, Told::kWhatIsPromised)) << "end " << at << ", " << how;
      const uint8_t* there = wire->ends[at].memory;
      if (std::memcmp(here.memory, there, kEndBytes) == 0) continue;
      const auto differs = std::mismatch(there, there + kEndBytes, here.memory).first - there;
      ADD_FAILURE() << "memory of end " << at << " differs at " << differs << ", " << how;
    }
  }

  // A QP whose request was refused by its own NIC goes on from SQE.
  static void Renew(Ends& local, Ends& one_by_one, Ends& in_batches) {
    for (int at : {0, 1}) {
      if (local.StateOf(at) != QpState::kSqe) continue;
      for (Ends* ends : {&local, &one_by_one, &in_batches}) {
        shm::QpAttr attr{};
        attr.qp_state = static_cast<uint32_t>(QpState::kRts);
        const End& end = ends->ends[at];
        EXPECT_EQ(end.client->Modify(*end.qp, attr, shm::qp_mask::kState), 0);
      }
    }
    for (int at : {0, 1}) Compare(at, local, one_by_one, in_batches);
    for (Ends* ends : {&local, &one_by_one, &in_batches}) ends->Renew();
  }

  Seen seen_;
};

TEST_P(LocalWire, NobodyCanTell) {
  constexpr uint32_t kSeeds = 30;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    ASSERT_TRUE(Run(seed));
  }
  // Or this shows little.
  EXPECT_GT(seen_.packets, GetParam() == Service::kUd ? 2'000u : 20'000u);
  EXPECT_GT(seen_.completions, 2'500u);
  std::vector<WcStatus> expected = {WcStatus::kSuccess, WcStatus::kLocLenErr, WcStatus::kLocProtErr,
                                    WcStatus::kWrFlushErr};
  if (GetParam() == Service::kRc) {
    expected.insert(expected.end(), {WcStatus::kRemAccessErr, WcStatus::kRemInvReqErr,
                                     WcStatus::kRemOpErr, WcStatus::kRnrRetryExcErr});
  } else {
    expected.push_back(WcStatus::kLocQpOpErr);
  }
  for (WcStatus status : expected) {
    EXPECT_TRUE(seen_.statuses.contains(status)) << static_cast<int>(status);
  }
  EXPECT_EQ(seen_.excuses != 0, GetParam() != Service::kUd);
}

std::string NameOf(const ::testing::TestParamInfo<Service>& info) {
  static const char* const kNames[] = {"Rc", "Uc", "Ud"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Services, LocalWire,
                         ::testing::Values(Service::kRc, Service::kUc, Service::kUd), NameOf);

}  // namespace
}  // namespace verbena::softnic::testing
