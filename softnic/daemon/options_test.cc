// What the daemon's command line takes, and what it says of the rest.
#include "softnic/daemon/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace verbena::softnic {
namespace {

std::string Parse(const std::string& flag, DaemonOptions* out) {
  const std::vector<const char*> argv = {"verbenad", "--directory=/tmp", flag.c_str()};
  return ParseOptions(static_cast<int>(argv.size()), argv.data(), out);
}

// At path MTU 256 one byte more would take all of the PSNs there may be in flight and one: an RC
// requester would wait for room that never comes.  Spec: IBTA 9.7.2
TEST(Options, MessagesAreNoLongerThanAPathMtuOf256CanCarry) {
  constexpr uint32_t kPsnsInFlightMax = (1u << 23) - 1;
  DaemonOptions options;
  EXPECT_EQ(Parse("--max-message-bytes=2147483392", &options), "");
  EXPECT_EQ(options.limits.max_message_bytes, kPsnsInFlightMax * 256);
  for (const char* too_long : {"2147483393", "2147483648", "4294967296"}) {
    EXPECT_EQ(Parse(std::string("--max-message-bytes=") + too_long, &options),
              std::string("--max-message-bytes takes a number from 1 to 2147483392, not \"") +
                  too_long + "\"");
  }
  EXPECT_EQ(options.limits.max_message_bytes, kPsnsInFlightMax * 256);
  EXPECT_LE(DeviceLimits{}.max_message_bytes, kPsnsInFlightMax * 256);
}

TEST(Options, ANicSaysWhereItIs) {
  DaemonOptions options;
  EXPECT_EQ(Parse("--nic=ip=10.0.0.1,netns=/proc/1/ns/net,name=a,ip=fd00::1", &options), "");
  EXPECT_EQ(Parse("--nic=ip=10.0.0.2", &options), "");
  ASSERT_EQ(options.network.nics.size(), 2u);
  EXPECT_EQ(options.network.nics[0].netns, "/proc/1/ns/net");
  EXPECT_EQ(options.network.nics[0].name, "a");
  EXPECT_EQ(options.network.nics[0].addresses.size(), 2u);
  EXPECT_EQ(options.network.nics[1].netns, "");
  EXPECT_NE(Parse("--nic=ip=10.0.0.3,netns=", &options).find("netns= wants a name"),
            std::string::npos);
  EXPECT_NE(Parse("--nic=ip=10.0.0.3,netns=a,netns=b", &options).find("not in two"),
            std::string::npos);
  EXPECT_NE(Parse("--nic=netns=blue", &options).find("needs an address"), std::string::npos);
  EXPECT_NE(Parse("--nic=ip=10.0.0.3,vrf=blue", &options).find("not \"vrf=blue\""),
            std::string::npos);
}

}  // namespace
}  // namespace verbena::softnic
