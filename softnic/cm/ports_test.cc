// Port spaces and addresses, without and with a service around them.
#include "softnic/cm/ports.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <set>

#include "softnic/cm/ip_header.h"
#include "softnic/cm/test_world.h"

namespace verbena::softnic {
namespace {

class CmPorts : public ::testing::Test {
 protected:
  struct Options {
    bool may_share = false;
    std::optional<bool> is_family_only{};
    uint16_t port_space = RDMA_PS_TCP;
  };
  int Bind(const shm::CmAddress& address) { return Bind(address, Options()); }
  int Bind(const shm::CmAddress& address, Options options) {
    holder_ = {{1, next_++},
               address,
               options.may_share,
               options.is_family_only.value_or(address.family == AF_INET)};
    return table_.Bind(options.port_space, &holder_);
  }

  CmPortTable table_{1};
  uint32_t next_ = 1;
  CmPortHolder holder_{};
};

TEST_F(CmPorts, AnAddressHasEachPortOnce) {
  EXPECT_EQ(Bind(At("10.0.0.1", 80)), 0);
  const CmPortHolder first = holder_;
  EXPECT_EQ(Bind(At("10.0.0.1", 80)), EADDRINUSE);
  EXPECT_EQ(Bind(At("10.0.0.2", 80)), 0);
  EXPECT_EQ(Bind(At("10.0.0.1", 80), {.port_space = RDMA_PS_UDP}), 0);
  table_.Release(RDMA_PS_TCP, first);
  EXPECT_EQ(Bind(At("10.0.0.1", 80)), 0);
}

TEST_F(CmPorts, AWildcardIsEveryAddress) {
  EXPECT_EQ(Bind(At("0.0.0.0", 80)), 0);
  EXPECT_EQ(Bind(At("0.0.0.0", 80)), EADDRNOTAVAIL) << "as Linux's rdma_cm, not as bind(2)";
  EXPECT_EQ(Bind(At("10.0.0.1", 80)), EADDRNOTAVAIL);
  EXPECT_EQ(Bind(At("::", 80)), EADDRNOTAVAIL) << "IPv4's, too";
  EXPECT_EQ(Bind(At("::", 80), {.is_family_only = true}), 0);
}

TEST_F(CmPorts, ThoseWhoAllShareMay) {
  EXPECT_EQ(Bind(At("10.0.0.1", 80), {.may_share = true}), 0);
  const CmPortHolder first = holder_;
  EXPECT_EQ(table_.CheckListen(RDMA_PS_TCP, first), 0);
  EXPECT_EQ(Bind(At("10.0.0.1", 80)), EADDRINUSE);
  EXPECT_EQ(Bind(At("10.0.0.1", 80), {.may_share = true}), 0);
  EXPECT_EQ(table_.CheckListen(RDMA_PS_TCP, first), EADDRINUSE) << "who listens does not share";
}

TEST_F(CmPorts, ChosenPortsAreFreeOnes) {
  std::set<uint16_t> ports;
  for (int i = 0; i < 28'232; ++i) {
    ASSERT_EQ(Bind(At("0.0.0.0")), 0) << i;
    const uint16_t port = ntohs(holder_.address.port);
    ASSERT_GE(port, 32'768);
    ASSERT_LE(port, 60'999);
    ASSERT_TRUE(ports.insert(port).second) << port;
  }
  EXPECT_EQ(Bind(At("0.0.0.0")), EADDRNOTAVAIL) << "none is left";
  EXPECT_EQ(Bind(At("0.0.0.0"), {.port_space = RDMA_PS_UDP}), 0);
  table_.Release(RDMA_PS_UDP, holder_);
  EXPECT_EQ(table_.size(), ports.size());
}

TEST(CmIpHeader, BytesAreThoseOfA11) {
  std::byte bytes[kIpHeaderBytes];
  EncodeIpHeader({At("10.1.2.3", 0x1234), At("10.4.5.6")}, bytes);
  const uint8_t expected[kIpHeaderBytes] = {0, 0x40, 0x12, 0x34,  //
                                            0, 0,    0,    0,    0, 0, 0,  0, 0, 0, 0,
                                            0, 10,   1,    2,    3, 0, 0,  0, 0, 0, 0,
                                            0, 0,    0,    0,    0, 0, 10, 4, 5, 6};
  EXPECT_EQ(std::memcmp(bytes, expected, sizeof bytes), 0);
  IpHeader header;
  ASSERT_TRUE(DecodeIpHeader(bytes, &header));
  EXPECT_TRUE(IsSameHost(header.source, At("10.1.2.3")));
  EXPECT_EQ(header.source.port, htons(0x1234));
  EXPECT_TRUE(IsSameHost(header.destination, At("10.4.5.6")));

  EncodeIpHeader({At("fd00::1", 1), At("fd00::2")}, bytes);
  EXPECT_EQ(bytes[1], std::byte{0x60});
  ASSERT_TRUE(DecodeIpHeader(bytes, &header));
  EXPECT_TRUE(IsSameHost(header.source, At("fd00::1")));
  bytes[1] = std::byte{0x50};
  EXPECT_FALSE(DecodeIpHeader(bytes, &header));
  bytes[0] = std::byte{1};
  bytes[1] = std::byte{0x40};
  EXPECT_FALSE(DecodeIpHeader(bytes, &header));
}

TEST(CmIpHeader, AServiceIsPortSpaceAndPort) {
  EXPECT_EQ(ServiceIdOf(RDMA_PS_TCP, htons(7174)).value, 0x0106'1c06u);
  EXPECT_EQ(PortOf(transport::cm::ServiceId{0x0106'1c06u}), htons(7174));
}

// --- addresses -----------------------------------------------------------------------------------

class CmAddresses : public CmWorld {
 protected:
  void Use(std::vector<CmNic> nics) { book_.SetNics(std::move(nics)); }
  // source@NIC, or "errno N".
  std::string Reach(const char* destination, const char* source = nullptr, uint32_t scope_id = 0) {
    const shm::CmAddress to = At(destination, 1, scope_id);
    const shm::CmAddress from = source == nullptr ? WildcardOf(to.family) : At(source);
    const int error = book_.Resolve(from, to, &reach_);
    if (error != 0) return strerror(error);
    return TextOf(reach_.source) + "@" + std::to_string(reach_.local.nic);
  }
  CmAddressBook book_;
  CmReach reach_;
  shm::CmQuery last_query_{};
};

TEST_F(CmAddresses, OfNicsThatAreLocalOnly) {
  std::vector<CmNic> nics = {NicsOf(0)[1], NicsOf(0)[2]};
  Use(nics);
  EXPECT_EQ(Reach("127.0.0.1"), "127.0.0.1:0@1");
  EXPECT_EQ(Reach("127.0.0.2"), "127.0.0.1:0@1");
  EXPECT_EQ(reach_.remote, nics[1].gids[1]);
  EXPECT_EQ(Reach("127.0.0.2", "127.0.0.2"), "127.0.0.2:0@2");
  EXPECT_EQ(Reach("127.0.0.1", "127.0.0.2"), "127.0.0.2:0@2");
  EXPECT_EQ(Reach("::1"), "[::1]:0@1");
  EXPECT_EQ(reach_.remote, nics[0].gids[0]);
  EXPECT_EQ(Reach("0.0.0.0"), "127.0.0.1:0@1");
  EXPECT_EQ(Reach("192.168.1.1"), strerror(EHOSTUNREACH));
  EXPECT_EQ(Reach("192.168.1.1", "127.0.0.1"), strerror(EHOSTUNREACH));
  EXPECT_EQ(Reach("127.0.0.9"), strerror(EHOSTUNREACH));
  book_.SetHostAddresses({At("192.168.1.1")});
  EXPECT_EQ(Reach("192.168.1.1"), "192.168.1.1:0@1");
  EXPECT_EQ(reach_.remote, nics[0].gids[1]);
  EXPECT_EQ(Reach("239.1.1.1"), "127.0.0.1:0@1");
  EXPECT_EQ(reach_.remote, GidOf(At("239.1.1.1")));
  EXPECT_EQ(Reach("fe80::12"), strerror(EINVAL)) << "without a scope";
  EXPECT_EQ(Reach("fe80::12", nullptr, 1), "[fe80::12]:0@2");
  Use({});
  EXPECT_EQ(Reach("127.0.0.1"), strerror(ENODEV));
}

TEST_F(CmAddresses, OfNicsWithANetwork) {
  Use(NicsOf(0));
  EXPECT_EQ(Reach("10.0.0.2"), "10.0.0.1:0@0");
  EXPECT_EQ(Reach("8.8.8.8"), "10.0.0.1:0@0");
  EXPECT_EQ(Reach("fd00::2"), "[fd00::1]:0@0");
  EXPECT_EQ(Reach("fe80::2", nullptr, 7), "[fe80::1]:0@0");
  EXPECT_EQ(Reach("fe80::2", nullptr, 8), strerror(ENETUNREACH));
  EXPECT_EQ(Reach("10.0.0.1"), "10.0.0.1:0@0");
  EXPECT_EQ(Reach("127.0.0.1"), "127.0.0.1:0@1");
  EXPECT_EQ(Reach("10.0.0.2", "127.0.0.1"), strerror(EHOSTUNREACH));
  EXPECT_EQ(Reach("10.0.0.2", "10.9.9.9"), strerror(EADDRNOTAVAIL));
  EXPECT_EQ(Reach("::ffff:10.0.0.2"), "[::ffff:10.0.0.1]:0@0");
  EXPECT_EQ(Reach("239.1.1.1"), "10.0.0.1:0@0");
  std::vector<CmNic> nics = {NicsOf(0)[0]};
  Use(nics);
  EXPECT_EQ(Reach("127.0.0.1"), "127.0.0.1:0@0") << "no NIC's, so any will do";
  EXPECT_EQ(reach_.remote, GidOf(At("10.0.0.1")));
  EXPECT_EQ(Reach("127.0.0.9"), strerror(EHOSTUNREACH)) << "not for the network";
  EXPECT_EQ(Reach("::1"), "[::1]:0@0");
  EXPECT_EQ(Reach("127.0.0.1", "10.0.0.1"), "10.0.0.1:0@0");
  EXPECT_EQ(Reach("127.0.0.1", "127.0.0.1"), "127.0.0.1:0@0");
  EXPECT_EQ(Reach("10.0.0.1", "127.0.0.1"), "10.0.0.1:0@0");
  EXPECT_EQ(Reach("10.0.0.2", "127.0.0.1"), strerror(EINVAL)) << "not for the network";
  nics = NicsOf(0);
  nics[0].gids.pop_back();
  nics[0].is_up = true;
  Use(nics);
  EXPECT_EQ(Reach("fd00::2"), strerror(ENETUNREACH)) << "no IPv6 but link-local";
  nics[0].is_up = false;
  Use(nics);
  EXPECT_EQ(Reach("10.0.0.2"), strerror(ENETUNREACH));
}

TEST_F(CmAddresses, AreBoundWhereTheyAre) {
  Program program = StartProgram(0);
  auto bind = [&](const shm::CmAddress& address) {
    const shm::CmHandle id = NewId(program);
    const int error = Bind(program, id, address);
    last_query_ = Ask(program, shm::CmOp::kQuery, id).query;
    return error;
  };
  EXPECT_EQ(bind(At("10.0.0.1")), 0);
  EXPECT_EQ(last_query_.nic, 0u);
  EXPECT_EQ(last_query_.node_guid, NicsOf(0)[0].node_guid);
  EXPECT_NE(last_query_.source.port, 0);
  EXPECT_EQ(bind(At("127.0.0.2")), 0);
  EXPECT_EQ(last_query_.nic, 2u);
  EXPECT_EQ(bind(At("0.0.0.0")), 0);
  EXPECT_EQ(last_query_.node_guid, 0u) << "of no NIC yet";
  EXPECT_EQ(bind(At("10.0.0.2")), EADDRNOTAVAIL);
  EXPECT_EQ(bind(At("fe80::1")), EINVAL);
  EXPECT_EQ(bind(At("fe80::1", 0, 7)), 0);
  shm::CmAddress odd{};
  odd.family = 27;
  EXPECT_EQ(bind(odd), EAFNOSUPPORT);
  hosts_[0]->SetHostAddresses({At("192.168.1.1")});
  EXPECT_EQ(bind(At("192.168.1.1")), 0);
  EXPECT_EQ(last_query_.nic, 1u) << "the first that is local only";
  std::vector<CmNic> networked = {NicsOf(0)[0]};
  hosts_[0]->SetNics(now_, networked);
  EXPECT_EQ(bind(At("192.168.1.1")), ENODEV);
  EXPECT_EQ(bind(At("127.0.0.1", 7)), 0);
  EXPECT_EQ(last_query_.node_guid, 0u) << "of no NIC yet, where none stands for loopback";
  EXPECT_TRUE(IsSameHost(last_query_.source, At("127.0.0.1")));
  EXPECT_EQ(bind(At("10.0.0.1", 7)), EADDRNOTAVAIL) << "it has the port at every address";
  const shm::CmHandle id = NewId(program);
  EXPECT_EQ(Bind(program, id, At("10.0.0.1")), 0);
  EXPECT_EQ(Bind(program, id, At("10.0.0.1")), EINVAL) << "bound already";
}

}  // namespace
}  // namespace verbena::softnic
