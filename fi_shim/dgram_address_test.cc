#include "fi_shim/dgram_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>

namespace verbena::fi {
namespace {

TEST(DgramAddress, Ipv4NamesGidAndQpn) {
  SockAddress address = {};
  address.in.sin_family = AF_INET;
  address.in.sin_addr.s_addr = htonl(0x7f000002);
  EXPECT_EQ(QpnOf(address), 0u);
  SetQpn(0x123456, &address);
  EXPECT_EQ(QpnOf(address), 0x123456u);
  EXPECT_EQ(address.in.sin_addr.s_addr, htonl(0x7f000002));
  EXPECT_EQ(address.in.sin_port, 0);

  uint8_t gid[16];
  ASSERT_TRUE(GidOf(address, &gid));
  const uint8_t wanted[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2};
  EXPECT_EQ(memcmp(gid, wanted, sizeof(gid)), 0);

  SockAddress back;
  SetGid(gid, &back);
  SetQpn(0x123456, &back);
  EXPECT_EQ(memcmp(&back.in, &address.in, sizeof(back.in)), 0);
}

TEST(DgramAddress, Ipv6NamesGidAndQpn) {
  SockAddress address = {};
  address.in6.sin6_family = AF_INET6;
  ASSERT_EQ(inet_pton(AF_INET6, "2001:db8::7", &address.in6.sin6_addr), 1);
  EXPECT_EQ(QpnOf(address), 0u);
  SetQpn(0xfffffe, &address);
  EXPECT_EQ(QpnOf(address), 0xfffffeu);
  uint8_t gid[16];
  ASSERT_TRUE(GidOf(address, &gid));
  SockAddress back;
  SetGid(gid, &back);
  EXPECT_EQ(memcmp(&back.in6.sin6_addr, &address.in6.sin6_addr, sizeof(in6_addr)), 0);
}

TEST(DgramAddress, OtherFamiliesNameNothing) {
  SockAddress address = {};
  address.sa.sa_family = AF_UNIX;
  uint8_t gid[16];
  EXPECT_FALSE(GidOf(address, &gid));
  EXPECT_EQ(QpnOf(address), 0u);
}

}  // namespace
}  // namespace verbena::fi
