// Random programs of verbs work between two ends, drawn apart from whoever carries them out: so
// that the same program is carried out twice, and what came of it compared (test_ends.h).
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/shm/layout.h"
#include "softnic/device/test_world.h"

namespace verbena::softnic::testing {

// An end's memory, by use. Requests take their payload from the source, and put what they fetch
// into the results; the peer's WRITEs go to the target, its SENDs to the inbox, its atomics to the
// words. So whatever is under way at the same time, in both directions, the result is the same.
inline constexpr uint32_t kAreaBytes = 80'000;
inline constexpr uint32_t kSourceAt = 0;
inline constexpr uint32_t kResultsAt = kAreaBytes;
inline constexpr uint32_t kTargetAt = 2 * kAreaBytes;
inline constexpr uint32_t kInboxAt = 3 * kAreaBytes;
inline constexpr uint32_t kWordsAt = 4 * kAreaBytes;
inline constexpr uint32_t kWords = 32;
inline constexpr uint32_t kEndBytes = kWordsAt + kWords * 8;
inline constexpr uint32_t kInlineBytes = 512;  // as many as a QP may have

struct Range {
  uint32_t at = 0, length = 0;
};

// What is wrong with a request, or with what it needs at the peer.
enum class Wrong : uint8_t {
  kNothing,
  kRkey,             // never given out
  kBeyondRegion,     // its last bytes
  kNoRemoteRight,    // of the region
  kQpForbids,        // what it asks for
  kLkey,             // of one of its SGEs
  kNoLocalWrite,     // where it fetches to
  kReceiveTooShort,  // for its message
  kReceiveLkey,      // of one of its receive's SGEs
  kNoReceive,        // at all
  kLateReceive,      // RC: comes while the requester waits to try again
  kInvalidRkey,      // SEND with invalidate
  kMisaligned,       // atomic
  kAtomicLength,     // not of eight bytes
  kServiceForbids,   // the opcode
  kDatagramTooLong,  // for the port's MTU
  kQkey,             // UD
  kNoSuchQp,         // UD
};

struct RecvWr {
  uint64_t wr_id = 0;
  std::vector<Range> pieces;
  bool has_bad_lkey = false;
};

struct Work {
  shm::WrOpcode opcode = shm::WrOpcode::kSend;
  uint64_t wr_id = 0;
  uint8_t flags = 0;
  bool is_inline = false;
  Wrong wrong = Wrong::kNothing;
  std::vector<Range> pieces;  // of local memory
  uint32_t remote_at = 0, length = 0;
  uint32_t imm = 0;
  uint64_t operands[2] = {};      // of atomics
  uint32_t flush_level = 0;       // of a FLUSH
  std::optional<RecvWr> receive;  // what the peer posts for it

  bool IsWrite() const {
    return opcode == shm::WrOpcode::kRdmaWrite || opcode == shm::WrOpcode::kRdmaWriteWithImm;
  }
  bool IsSend() const {
    return opcode == shm::WrOpcode::kSend || opcode == shm::WrOpcode::kSendWithImm ||
           opcode == shm::WrOpcode::kSendWithInv;
  }
  bool IsAtomic() const {
    return opcode == shm::WrOpcode::kAtomicCmpAndSwp || opcode == shm::WrOpcode::kAtomicFetchAndAdd;
  }
  bool TakesReceive() const { return IsSend() || opcode == shm::WrOpcode::kRdmaWriteWithImm; }
};

// What is under way at once, posted by each end. A burst with something wrong in it has one
// requester: when a QP fails, how far the work of its peer came is a matter of time.
struct Burst {
  std::vector<Work> works[2];
  Wrong wrong = Wrong::kNothing;
  uint8_t refresh = 1;  // makes the sources' bytes others than before
};

// Of a whole program.
struct Terms {
  Service service = Service::kRc;
  uint8_t path_mtu = 3;       // 1: 256 bytes … 5: 4096; UD: the port's
  uint8_t peer_path_mtu = 0;  // of the second end; 0: the same
  uint32_t first_psns[2] = {0x123456, 0x123456};
  bool has_srq = false;
  uint32_t works_max = 1;     // of one end in a burst
  uint32_t wrong_every = 50;  // works, about
  uint32_t late_every = 16;   // of those that take a receive

  uint32_t MtuBytes() const { return 128u << path_mtu; }
};

// For who reads of a difference.
std::string Describe(const Burst& burst, const Terms& terms);

class ProgramMaker {
 public:
  ProgramMaker(uint32_t seed, const Terms& terms) : random_(seed), terms_(terms) {}

  Burst Draw();

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  uint32_t DrawLength();
  shm::WrOpcode DrawOpcode();
  std::vector<Range> DrawPieces(uint32_t area, uint32_t length);
  RecvWr DrawReceive(const Work& work);
  Work DrawWork();
  void DrawRemote(Work* work);
  // Spoils the work in one of the ways that suit it. kNothing: none does.
  Wrong Spoil(Work* work);
  std::vector<Wrong> WaysToSpoil(const Work& work) const;

  std::mt19937 random_;
  const Terms terms_;
  uint64_t next_wr_id_ = 1;
  bool reads_target_ = false;  // a READ of it has been drawn, and no fence since
};

}  // namespace verbena::softnic::testing
