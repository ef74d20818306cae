#include "transport/rc/goodput.h"

#include <algorithm>
#include <vector>

#include "transport/rc/rc_pair.h"

namespace verbena::transport::rc {
namespace {

using shm::WrOpcode;

constexpr uint32_t kLossesPerMille[] = {0, 1, 10, 50, 200};
constexpr uint32_t kMessageBytes[] = {64, 4096, 65'536, 1'048'576};
constexpr uint32_t kMtuCodes[] = {3, 5};  // 1024 and 4096 bytes
// A cell moves about this much, in at least and at most so many messages.
constexpr uint32_t kCellBytes = 8u << 20;
constexpr uint32_t kMessagesMin = 8;
constexpr uint32_t kMessagesMax = 6000;

RcPairOptions Options(uint32_t mtu_code, uint32_t loss_per_mille) {
  RcPairOptions options;
  options.mtu_code = mtu_code;
  options.max_unacked_psns = 128;
  options.max_rd_atomic = 16;
  options.timeout_exp = 8;
  options.link.loss_per_mille = loss_per_mille;
  options.link.delay = Microseconds(5);
  options.link.wire_ps_per_byte = 800;  // 10 Gbit/s
  // Preamble, gap, Ethernet header and FCS; IPv4, UDP, BTH, ICRC.
  options.link.wire_header_bytes = 38 + 20 + 8 + 12 + 4;
  options.link.keeps_refused = false;
  return options;
}

// MB/s of message bytes, or "-" when the retries were exceeded.
std::string Cell(WrOpcode opcode, uint32_t bytes, uint32_t mtu_code, uint32_t loss_per_mille) {
  RcPair pair(Options(mtu_code, loss_per_mille));
  const uint32_t messages = std::clamp(kCellBytes / bytes, kMessagesMin, kMessagesMax);
  MemoryId mine = pair.NewPattern(bytes);
  MemoryId theirs = pair.NewPattern(bytes, 2);
  for (uint32_t i = 0; i < messages; ++i) {
    pair.Queue(RcPair::kA,
               pair.Remote(RcPair::Work(i, opcode, {pair.memory.SgeOf(mine, 0, bytes)}), theirs));
  }
  pair.Ring(RcPair::kA);
  auto& done = pair.fabric.completions(RcPair::kA);
  pair.fabric.RunUntil([&] { return done.size() == messages; }, Instant{0} + Seconds(600));
  if (done.size() != messages || done.back().status != WcStatus::kSuccess) return "-";
  if (!pair.SameBytes(mine, theirs)) return "wrong bytes";
  const int64_t us = (pair.fabric.now() - Instant{0}).ns / 1000;
  const int64_t tenths = int64_t{messages} * bytes * 10 / us;
  return std::to_string(tenths / 10) + '.' + std::to_string(tenths % 10);
}

std::string Percent(uint32_t per_mille) {
  std::string text = std::to_string(per_mille / 10);
  if (per_mille % 10 != 0) text += '.' + std::to_string(per_mille % 10);
  return text + " %";
}

std::string Padded(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string Table(WrOpcode opcode) {
  constexpr size_t kWidth = 9;
  std::string text = "|   path MTU |    message |";
  std::string rule = "|-----------:|-----------:|";
  for (uint32_t loss : kLossesPerMille) {
    text += ' ' + Padded(Percent(loss), kWidth) + " |";
    rule += std::string(kWidth + 1, '-') + ":|";
  }
  text += '\n' + rule + '\n';
  for (uint32_t mtu_code : kMtuCodes) {
    for (uint32_t bytes : kMessageBytes) {
      text += "| " + Padded(std::to_string(MtuBytes(mtu_code)), 10) + " | " +
              Padded(std::to_string(bytes), 10) + " |";
      for (uint32_t loss : kLossesPerMille) {
        text += ' ' + Padded(Cell(opcode, bytes, mtu_code, loss), kWidth) + " |";
      }
      text += '\n';
    }
  }
  return text;
}

}  // namespace

std::string GoodputPage() {
  return "# RC: goodput over a network that loses packets\n"
         "\n"
         "Made by the simulator (`bazel run //tools/spec:print_spec`); a test compares. Time "
         "is virtual,\n"
         "so a changed number is a changed protocol: say why in CHANGELOG.md.\n"
         "\n"
         "MB/s of message bytes by packet loss in both directions. One QP keeps its send queue "
         "full; 10 Gbit/s\n"
         "each way (1250 MB/s, 82 bytes of headers per packet), 5 µs of delay, 128 packets "
         "outstanding at most,\n"
         "16 READs, `timeout` 8 (waits 2.1 ms), `retry_cnt` 7. \"-\": the retries were "
         "exceeded.\n"
         "\n"
         "## WRITE\n\n" +
         Table(WrOpcode::kRdmaWrite) + "\n## READ\n\n" + Table(WrOpcode::kRdmaRead);
}

}  // namespace verbena::transport::rc
