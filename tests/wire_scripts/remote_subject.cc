#include "tests/wire_scripts/remote_subject.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "tests/wire_scripts/script.h"

namespace verbena::wire_scripts {

using transport::wire::kRoceUdpPort;

namespace {

// A guest that is emulated on a busy machine answers in its own time.
constexpr int kAnswerLimitMs = 60'000;
constexpr int kPacketLimitMs = 30'000;
constexpr size_t kDatagramBytesMax = 65'536;

[[noreturn]] void Die(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

void SetOption(int fd, int level, int option, int value, const char* name) {
  if (setsockopt(fd, level, option, &value, sizeof value) != 0) Die(name);
}

Gid GidOf(const std::string& text) {
  Gid gid;
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return Gid::FromIpv4(ntohl(v4.s_addr));
  if (inet_pton(AF_INET6, text.c_str(), gid.raw.data()) != 1) {
    throw std::runtime_error("no IP address: '" + text + "'");
  }
  return gid;
}

socklen_t FillAddress(const Gid& gid, uint16_t port, sockaddr_in6* out) {
  *out = {};
  if (gid.IsIpv4Mapped()) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(out);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    std::memcpy(&v4->sin_addr, &gid.raw[12], sizeof v4->sin_addr);
    return sizeof *v4;
  }
  out->sin6_family = AF_INET6;
  out->sin6_port = htons(port);
  std::memcpy(&out->sin6_addr, gid.raw.data(), gid.raw.size());
  return sizeof *out;
}

bool IsReadable(int fd, int limit_ms) {
  pollfd ready{fd, POLLIN, 0};
  const int count = poll(&ready, 1, limit_ms);
  if (count < 0) Die("poll");
  return count == 1;
}

std::string HexOf(const void* bytes, size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<const uint8_t*>(bytes)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

RemoteSubject::RemoteSubject(const RemoteOptions& options) {
  path_.source = GidOf(options.local);
  path_.destination = GidOf(options.remote);
  sockaddr_in6 address;
  const socklen_t length = FillAddress(GidOf(options.host), options.port, &address);
  control_ = socket(address.sin6_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (control_ < 0 || connect(control_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    Die("connecting to the subject");
  }
  SetOption(control_, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  OpenSocket(options.local);
}

RemoteSubject::~RemoteSubject() {
  if (socket_ >= 0) close(socket_);
  if (control_ >= 0) close(control_);
}

// As the ICRC needs it: Don't Fragment and, on a socket that is not connected, identification 0.
void RemoteSubject::OpenSocket(const std::string& local) {
  sockaddr_in6 address;
  const socklen_t length = FillAddress(path_.source, kRoceUdpPort, &address);
  socket_ = socket(address.sin6_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0) Die("UDP socket");
  if (path_.IsIpv4()) {
    SetOption(socket_, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, "IP_MTU_DISCOVER");
  } else {
    // rxe sends its UDP checksum as 0, which IPv6 sockets refuse unless told otherwise.
    SetOption(socket_, IPPROTO_UDP, UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX");
  }
  if (bind(socket_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    Die("binding to port 4791 of " + local);
  }
}

RemoteSubject::Reply RemoteSubject::Ask(const std::string& line) {
  const std::string request = line + "\n";
  if (send(control_, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    Die("asking the subject");
  }
  size_t end;
  while ((end = unread_.find('\n')) == std::string::npos) {
    if (!IsReadable(control_, kAnswerLimitMs)) throw std::runtime_error("no answer to " + line);
    char piece[65'536];
    const ssize_t count = recv(control_, piece, sizeof piece, 0);
    if (count <= 0) throw std::runtime_error("the subject has ended, asked to " + line);
    unread_.append(piece, static_cast<size_t>(count));
  }
  std::istringstream words(unread_.substr(0, end));
  unread_.erase(0, end + 1);
  std::string word;
  words >> word;
  if (word != "ok") throw std::runtime_error(words.str() + "\n  asked to " + line);
  Reply reply;
  while (words >> word) {
    const size_t sign = word.find('=');
    reply[word.substr(0, sign)] = sign == std::string::npos ? "" : word.substr(sign + 1);
  }
  return reply;
}

Opened RemoteSubject::Open(const QpSpec& spec) {
  static constexpr const char* kServices[] = {"rc", "uc", "ud"};
  std::ostringstream line;
  line << "open service=" << kServices[static_cast<size_t>(spec.service)] << " srq=" << spec.has_srq
       << " path_mtu=" << spec.path_mtu_bytes << " sq_psn=" << spec.sq_psn
       << " rq_psn=" << spec.rq_psn << " dest_qp=" << spec.peer_qpn << " timeout=" << +spec.timeout
       << " retry_cnt=" << +spec.retry_cnt << " rnr_retry=" << +spec.rnr_retry
       << " min_rnr_timer=" << +spec.min_rnr_timer << " max_rd_atomic=" << +spec.max_rd_atomic
       << " max_dest_rd_atomic=" << +spec.max_dest_rd_atomic << " qkey=" << spec.qkey
       << " bytes=" << spec.region_bytes << " access=" << (access::kLocalWrite | spec.region_access)
       << " gid=" << HexOf(path_.source.raw.data(), path_.source.raw.size());
  const Reply reply = Ask(line.str());
  return {Qpn(static_cast<uint32_t>(ParseNumber(reply.at("qpn")))),
          RKey(static_cast<uint32_t>(ParseNumber(reply.at("rkey")))),
          ParseNumber(reply.at("address"))};
}

void RemoteSubject::Close() { Ask("close"); }

void RemoteSubject::Fill(uint32_t at, const std::vector<std::byte>& bytes) {
  Ask("fill at=" + std::to_string(at) + " bytes=" + HexOf(bytes.data(), bytes.size()));
}

std::vector<std::byte> RemoteSubject::Read(uint32_t at, uint32_t length) {
  const Reply reply = Ask("read at=" + std::to_string(at) + " length=" + std::to_string(length));
  const std::string& hex = reply.at("bytes");
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(ParseNumber("0x" + hex.substr(i, 2))));
  }
  return bytes;
}

void RemoteSubject::PostRecv(uint64_t wr_id, uint32_t at, uint32_t length) {
  Ask("recv wr_id=" + std::to_string(wr_id) + " at=" + std::to_string(at) +
      " length=" + std::to_string(length));
}

void RemoteSubject::PostSend(const SendRequest& request) {
  std::ostringstream line;
  line << "send wr_id=" << request.wr_id << " opcode=" << static_cast<uint32_t>(request.opcode)
       << " at=" << request.at << " length=" << request.length << " se=" << request.is_solicited
       << " imm=" << request.imm << " remote=" << request.remote_addr << " rkey=" << request.rkey
       << " compare_add=" << request.compare_add << " swap=" << request.swap
       << " qkey=" << request.remote_qkey;
  Ask(line.str());
}

std::optional<Completion> RemoteSubject::PollCompletion(bool waits) {
  Reply reply = Ask(waits ? "poll waits=1" : "poll waits=0");
  if (reply.empty()) return std::nullopt;
  auto number = [&](const char* key) { return static_cast<uint32_t>(ParseNumber(reply.at(key))); };
  Completion completion{number("wr_id"),
                        static_cast<WcStatus>(number("status")),
                        static_cast<shm::WcOpcode>(number("opcode")),
                        number("byte_len"),
                        number("src_qp"),
                        {}};
  if (reply.contains("imm")) completion.imm = number("imm");
  return completion;
}

QpState RemoteSubject::AwaitState(QpState wanted) {
  const Reply reply = Ask("state wanted=" + std::to_string(static_cast<int>(wanted)));
  return static_cast<QpState>(ParseNumber(reply.at("state")));
}

void RemoteSubject::Send(const std::vector<std::byte>& bytes) {
  sockaddr_in6 address;
  const socklen_t length = FillAddress(path_.destination, kRoceUdpPort, &address);
  const ssize_t sent =
      sendto(socket_, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&address), length);
  if (sent != static_cast<ssize_t>(bytes.size())) Die("sending a packet");
}

std::optional<Packet> RemoteSubject::AwaitPacket() { return Receive(kPacketLimitMs); }

std::optional<Packet> RemoteSubject::Receive(int limit_ms) {
  if (!IsReadable(socket_, limit_ms)) return std::nullopt;
  Packet packet;
  packet.bytes.resize(kDatagramBytesMax);
  sockaddr_in6 from;
  socklen_t length = sizeof from;
  const ssize_t count = recvfrom(socket_, packet.bytes.data(), packet.bytes.size(), 0,
                                 reinterpret_cast<sockaddr*>(&from), &length);
  if (count < 0) Die("receiving a packet");
  packet.bytes.resize(static_cast<size_t>(count));
  packet.address.source = path_.destination;
  packet.address.destination = path_.source;
  packet.address.source_port = ntohs(from.sin6_port);  // at the same place in a sockaddr_in
  return packet;
}

int64_t RemoteSubject::now_ns() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

}  // namespace verbena::wire_scripts
