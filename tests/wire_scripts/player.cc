#include "tests/wire_scripts/player.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/wire/packet.h"

namespace verbena::wire_scripts {
namespace {

template <typename T>
struct Named {
  const char* name;
  T value;
};

template <typename T, size_t kCount>
T LookUp(const Named<T> (&table)[kCount], const std::string& name, const char* what) {
  for (const Named<T>& row : table) {
    if (name == row.name) return row.value;
  }
  throw ScriptError(std::string("no such ") + what + ": '" + name + "'");
}
template <typename T, size_t kCount>
std::string NameIn(const Named<T> (&table)[kCount], T value) {
  for (const Named<T>& row : table) {
    if (row.value == value) return row.name;
  }
  return std::to_string(static_cast<int>(value));
}

constexpr Named<Service> kServices[] = {
    {"rc", Service::kRc}, {"uc", Service::kUc}, {"ud", Service::kUd}};
constexpr Named<uint32_t> kRights[] = {{"write", access::kRemoteWrite},
                                       {"read", access::kRemoteRead},
                                       {"atomic", access::kRemoteAtomic}};
constexpr Named<QpState> kStates[] = {
    {"rts", QpState::kRts}, {"sqe", QpState::kSqe}, {"err", QpState::kErr}};
constexpr Named<shm::WrOpcode> kWork[] = {
    {"send", shm::WrOpcode::kSend},
    {"send_imm", shm::WrOpcode::kSendWithImm},
    {"write", shm::WrOpcode::kRdmaWrite},
    {"write_imm", shm::WrOpcode::kRdmaWriteWithImm},
    {"read", shm::WrOpcode::kRdmaRead},
    {"compare_swap", shm::WrOpcode::kAtomicCmpAndSwp},
    {"fetch_add", shm::WrOpcode::kAtomicFetchAndAdd},
};
constexpr Named<shm::WcOpcode> kCompleted[] = {
    {"send", shm::WcOpcode::kSend},
    {"write", shm::WcOpcode::kRdmaWrite},
    {"read", shm::WcOpcode::kRdmaRead},
    {"compare_swap", shm::WcOpcode::kCompSwap},
    {"fetch_add", shm::WcOpcode::kFetchAdd},
    {"recv", shm::WcOpcode::kRecv},
    {"recv_write_imm", shm::WcOpcode::kRecvRdmaWithImm},
};
constexpr Named<WcStatus> kStatuses[] = {
    {"success", WcStatus::kSuccess},
    {"loc_len_err", WcStatus::kLocLenErr},
    {"loc_qp_op_err", WcStatus::kLocQpOpErr},
    {"loc_prot_err", WcStatus::kLocProtErr},
    {"wr_flush_err", WcStatus::kWrFlushErr},
    {"bad_resp_err", WcStatus::kBadRespErr},
    {"loc_access_err", WcStatus::kLocAccessErr},
    {"rem_inv_req_err", WcStatus::kRemInvReqErr},
    {"rem_access_err", WcStatus::kRemAccessErr},
    {"rem_op_err", WcStatus::kRemOpErr},
    {"retry_exc_err", WcStatus::kRetryExcErr},
    {"rnr_retry_exc_err", WcStatus::kRnrRetryExcErr},
};

bool IsRecv(shm::WcOpcode opcode) { return opcode >= shm::WcOpcode::kRecv; }

uint32_t RightsNamed(const std::string& list) {
  uint32_t rights = 0;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    rights |= LookUp(kRights, list.substr(begin, end - begin), "right");
    begin = end + 1;
  }
  return rights;
}

std::vector<std::byte> BytesOf(uint64_t number) {
  std::vector<std::byte> bytes(sizeof number);
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

}  // namespace

void Player::Play(const Story& story) {
  std::vector<std::pair<const Line*, Action>> actions;
  const Line* current = nullptr;
  try {
    for (const Line& line : story.lines) {
      current = &line;
      Action action = Compile(line);
      const bool is_ours =
          line.only == Only::kEverybody || (line.only == Only::kRxe) == options_.is_rxe;
      if (is_ours) actions.emplace_back(&line, std::move(action));
    }
    for (const auto& [line, action] : actions) {
      current = line;
      action();
    }
    CheckNothingIsLeft();
  } catch (const ScriptError& error) {
    if (current == nullptr) throw ScriptError(story.file + ": a story without lines");
    throw ScriptError(story.file + ":" + std::to_string(current->number) + ": " + current->text +
                      "\n  " + error.what());
  }
}

Player::Action Player::Compile(const Line& line) {
  static constexpr Named<Action (Player::*)(Words*)> kVerbs[] = {
      {"qp", &Player::CompileQp},       {"fill", &Player::CompileFill},
      {"holds", &Player::CompileHolds}, {"recv", &Player::CompileRecv},
      {"post", &Player::CompilePost},   {"wc", &Player::CompileCompletion},
      {"state", &Player::CompileState}, {">", &Player::CompileIncoming},
      {"<", &Player::CompileExpected},
  };
  const auto compile = LookUp(kVerbs, line.verb, "line");
  if (!spec_ && line.verb != "qp") throw ScriptError("a story begins with its 'qp'");
  Words words(line.rest);
  Action action = (this->*compile)(&words);
  words.End();
  return action;
}

Player::Action Player::CompileQp(Words* words) {
  if (spec_) throw ScriptError("a story has one QP");
  QpSpec spec;
  auto take = [&](std::string_view key, auto* out) {
    if (auto value = words->TakeNumber(key))
      *out = static_cast<std::decay_t<decltype(*out)>>(*value);
  };
  spec.service = LookUp(kServices, words->Take(), "service");
  take("mtu", &spec.path_mtu_bytes);
  take("sq_psn", &spec.sq_psn);
  take("rq_psn", &spec.rq_psn);
  take("timeout", &spec.timeout);
  take("retry_cnt", &spec.retry_cnt);
  take("rnr_retry", &spec.rnr_retry);
  take("min_rnr_timer", &spec.min_rnr_timer);
  take("max_rd_atomic", &spec.max_rd_atomic);
  take("max_dest_rd_atomic", &spec.max_dest_rd_atomic);
  take("qkey", &spec.qkey);
  take("mr", &spec.region_bytes);
  spec.has_srq = words->TakeOption("srq").has_value();
  spec.region_access = RightsNamed(words->TakeOption("rights").value_or(""));
  spec.peer_qpn = ends_.peer_qpn = options_.peer_qpn;
  spec_ = spec;
  return [this] { ends_.subject = subject_.Open(*spec_); };
}

Player::Action Player::CompileFill(Words* words) {
  const auto at = static_cast<uint32_t>(words->NeedNumber("at"));
  std::vector<std::byte> bytes;
  if (auto number = words->TakeNumber("u64")) {
    bytes = BytesOf(*number);
  } else {
    bytes = PatternRange::Parse(words->TakeOption("pattern").value_or("")).Bytes();
  }
  return [this, at, bytes] { subject_.Fill(at, bytes); };
}

Player::Action Player::CompileHolds(Words* words) {
  const auto at = static_cast<uint32_t>(words->NeedNumber("at"));
  if (words->TakeOption("grh")) return [this, at] { CheckGrh(at); };
  std::vector<std::byte> wanted;
  if (auto number = words->TakeNumber("u64")) {
    wanted = BytesOf(*number);
  } else if (auto count = words->TakeNumber("zeros")) {
    wanted.resize(*count);
  } else {
    wanted = PatternRange::Parse(words->TakeOption("pattern").value_or("")).Bytes();
  }
  return [this, at, wanted] { CheckHeld(at, wanted); };
}

Player::Action Player::CompileRecv(Words* words) {
  const auto at = static_cast<uint32_t>(words->TakeNumber("at", 0));
  const auto length = static_cast<uint32_t>(words->NeedNumber("len"));
  return [this, at, length] {
    receives_.push_back(next_wr_id_++);
    subject_.PostRecv(receives_.back(), at, length);
  };
}

Player::Action Player::CompilePost(Words* words) {
  SendRequest request;
  request.opcode = LookUp(kWork, words->Take(), "kind of work");
  const bool is_atomic = request.opcode == shm::WrOpcode::kAtomicCmpAndSwp ||
                         request.opcode == shm::WrOpcode::kAtomicFetchAndAdd;
  const bool is_rdma = is_atomic || request.opcode == shm::WrOpcode::kRdmaWrite ||
                       request.opcode == shm::WrOpcode::kRdmaWriteWithImm ||
                       request.opcode == shm::WrOpcode::kRdmaRead;
  const bool has_imm = request.opcode == shm::WrOpcode::kSendWithImm ||
                       request.opcode == shm::WrOpcode::kRdmaWriteWithImm;
  request.at = static_cast<uint32_t>(words->TakeNumber("at", 0));
  request.length = is_atomic ? sizeof(uint64_t) : static_cast<uint32_t>(words->NeedNumber("len"));
  request.is_solicited = words->TakeOption("se").has_value();
  if (is_rdma) {
    request.remote_addr = words->NeedNumber("remote");
    request.rkey = static_cast<uint32_t>(words->NeedNumber("rkey"));
  }
  if (has_imm) request.imm = static_cast<uint32_t>(words->NeedNumber("imm"));
  if (is_atomic) {
    const bool swaps = request.opcode == shm::WrOpcode::kAtomicCmpAndSwp;
    request.compare_add = words->NeedNumber(swaps ? "compare" : "add");
    if (swaps) request.swap = words->NeedNumber("swap");
  }
  if (spec_->service == Service::kUd) {
    request.remote_qkey = static_cast<uint32_t>(words->NeedNumber("qkey"));
  }
  return [this, request]() mutable {
    request.wr_id = next_wr_id_++;
    sends_.push_back(request.wr_id);
    input_ns_ = subject_.now_ns();
    subject_.PostSend(request);
  };
}

Player::Action Player::CompileCompletion(Words* words) {
  Completion wanted;
  wanted.opcode = LookUp(kCompleted, words->Take(), "completion");
  wanted.status = LookUp(kStatuses, words->Take(), "status");
  const bool is_recv = IsRecv(wanted.opcode);
  if (wanted.status == WcStatus::kSuccess && is_recv) {
    wanted.byte_len = static_cast<uint32_t>(words->NeedNumber("len"));
    if (auto imm = words->TakeNumber("imm")) wanted.imm = static_cast<uint32_t>(*imm);
  }
  return [this, wanted, is_recv] { CheckCompletion(NextCompletion(is_recv), wanted, is_recv); };
}

// Work of one queue completes in order; of two, in any.
Completion Player::NextCompletion(bool is_recv) {
  const std::deque<uint64_t>& other = is_recv ? sends_ : receives_;
  auto is_others = [&](const Completion& completion) {
    return std::find(other.begin(), other.end(), completion.wr_id) != other.end();
  };
  auto next = std::find_if_not(completions_.begin(), completions_.end(), is_others);
  while (next == completions_.end()) {
    const std::optional<Completion> got = subject_.AwaitCompletion();
    if (!got) throw ScriptError("no completion");
    completions_.push_back(*got);
    next = is_others(*got) ? completions_.end() : std::prev(completions_.end());
  }
  const Completion completion = *next;
  completions_.erase(next);
  return completion;
}

void Player::CheckCompletion(const Completion& got, const Completion& wanted, bool is_recv) {
  auto require = [&](bool condition, const std::string& text) {
    if (!condition) {
      throw ScriptError(text + ": wr_id " + std::to_string(got.wr_id) + ", status " +
                        NameIn(kStatuses, got.status) + ", opcode " +
                        NameIn(kCompleted, got.opcode) + ", len " + std::to_string(got.byte_len));
    }
  };
  std::deque<uint64_t>& posted = is_recv ? receives_ : sends_;
  require(!posted.empty() && posted.front() == got.wr_id, "not the completion that is next");
  posted.pop_front();
  require(got.status == wanted.status, "another status");
  if (wanted.status != WcStatus::kSuccess) return;
  require(got.opcode == wanted.opcode, "another opcode");
  if (!is_recv) return;
  require(got.byte_len == wanted.byte_len, "another length");
  require(got.imm == wanted.imm, got.imm ? "other immediate data" : "no immediate data");
  const bool is_from_peer = got.src_qp == ends_.peer_qpn;
  require(spec_->service != Service::kUd || is_from_peer, "another source QP");
}

Player::Action Player::CompileState(Words* words) {
  const std::string name = words->Take();
  const QpState wanted = LookUp(kStates, name, "state");
  return [this, wanted] {
    const QpState got = subject_.AwaitState(wanted);
    if (got != wanted) throw ScriptError("the QP's state is " + NameIn(kStates, got));
  };
}

Player::Action Player::CompileIncoming(Words* words) {
  PacketSpec spec = PacketSpec::Parse(spec_->service, words, false);
  return [this, spec] {
    input_ns_ = subject_.now_ns();
    subject_.Send(spec.Build(ends_, subject_.PathToSubject()));
  };
}

Player::Action Player::CompileExpected(Words* words) {
  const auto after_us = static_cast<int64_t>(words->TakeNumber("after_us", 0));
  const auto before_us = words->TakeNumber("before_us");
  PacketSpec spec = PacketSpec::Parse(spec_->service, words, true);
  return [this, spec, after_us, before_us] {
    const std::optional<Packet> packet = subject_.AwaitPacket();
    if (!packet) throw ScriptError("no packet came");
    const std::string mismatch = spec.Mismatch(*packet, ends_);
    if (!mismatch.empty()) throw ScriptError("got " + mismatch);
    const int64_t us = MicrosecondsSinceInput();
    const bool is_late =
        subject_.is_time_simulated() && before_us && us > static_cast<int64_t>(*before_us);
    if (us < after_us || is_late) {
      throw ScriptError("came " + std::to_string(us) + " us after the last thing done");
    }
  };
}

void Player::CheckHeld(uint32_t at, const std::vector<std::byte>& wanted) {
  const std::vector<std::byte> got = subject_.Read(at, static_cast<uint32_t>(wanted.size()));
  const auto differ = std::mismatch(got.begin(), got.end(), wanted.begin(), wanted.end());
  if (differ.first == got.end() && differ.second == wanted.end()) return;
  const auto offset = differ.first - got.begin();
  throw ScriptError("byte " + std::to_string(at + offset) + " of the region is " +
                    std::to_string(std::to_integer<int>(*differ.first)) + ", not " +
                    std::to_string(std::to_integer<int>(*differ.second)));
}

// What a UD receive has before the message: an IPv6 header, or an IPv4 one in the last 20 of its 40
// bytes.  Spec: IBTA A17.4.5.
void Player::CheckGrh(uint32_t at) {
  constexpr uint32_t kGrhBytes = 40, kIpv4At = 20, kUdp = 17;
  const std::vector<std::byte> grh = subject_.Read(at, kGrhBytes);
  const transport::wire::PacketAddress path = subject_.PathToSubject();
  const bool is_v4 = path.IsIpv4();
  const size_t address_bytes = is_v4 ? 4 : 16;
  const size_t source_at = is_v4 ? kIpv4At + 12 : 8;
  auto require = [](bool condition, const char* what) {
    if (!condition) throw ScriptError(std::string("the GRH has another ") + what);
  };
  auto holds = [&](size_t from, const Gid& gid) {
    return std::memcmp(&grh[from], &gid.raw[16 - address_bytes], address_bytes) == 0;
  };
  const auto version = std::to_integer<uint32_t>(grh[is_v4 ? kIpv4At : 0]) >> 4;
  require(version == (is_v4 ? 4 : 6), "IP version");
  require(std::to_integer<uint32_t>(grh[is_v4 ? kIpv4At + 9 : 6]) == kUdp, "protocol");
  require(holds(source_at, path.source), "source address");
  require(holds(source_at + address_bytes, path.destination), "destination address");
}

// At the end all has been said: what still comes is as wrong as what does not come.
void Player::CheckNothingIsLeft() {
  while (const std::optional<Completion> got = subject_.TakeCompletion()) {
    completions_.push_back(*got);
  }
  if (!completions_.empty()) {
    const Completion& got = completions_.front();
    throw ScriptError("the story is over, but there is a completion: wr_id " +
                      std::to_string(got.wr_id) + ", " + NameIn(kStatuses, got.status));
  }
  subject_.Close();
  if (const std::optional<Packet> packet = subject_.TakePacket()) {
    transport::Pdu pdu;
    transport::wire::Decode(packet->bytes.data(), static_cast<uint32_t>(packet->bytes.size()),
                            &pdu);
    throw ScriptError("the story is over, but there is a packet: " +
                      transport::wire::Describe(pdu));
  }
}

}  // namespace verbena::wire_scripts
