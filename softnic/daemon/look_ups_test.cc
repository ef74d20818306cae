// Destinations on a network that rdma_cm's clients look for, and nobody answers.
#include <gtest/gtest.h>

#include <climits>
#include <string>

#include "softnic/daemon/cm_test_client.h"
#include "transport/port/udp/network_namespace.h"

namespace verbena::softnic {
namespace {

using shm::CmHandle;
using transport::Run;

// What a daemon looks for at a time is less.
constexpr int kMany = 300;
// A destination that counts as found is told of at once.
constexpr int kAtOnceMs = 300;

// The far end of the cable has no address: nobody answers.
bool MakeNetwork() {
  return Run("ip link set lo up") && Run("ip link add near type veth peer name far") &&
         Run("ip addr add 10.9.0.1/16 dev near") && Run("ip link set near up") &&
         Run("ip link set far up");
}

// In a network of its own, with a daemon on it.
template <typename Body>
void OnASilentNetwork(Body body) {
  const int result = transport::RunInNamespace([&] {
    if (!MakeNetwork()) return transport::kNotAllowed;
    {
      TestDaemon daemon({"--nic=ip=10.9.0.1"});
      EXPECT_EQ(daemon.said(), "R");
      body(daemon);
    }
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (result == transport::kNotAllowed) GTEST_SKIP() << "no network namespaces, veth or ip(8) here";
  EXPECT_EQ(result, 0);
}

CmHandle LookFor(CmTestClient& client, CmHandle channel, int number) {
  const CmHandle id = client.CreateId(channel, 1);
  shm::CmRequest request = CmTestClient::RequestOf(shm::CmOp::kResolveAddr, id);
  const std::string text =
      "10.9." + std::to_string(1 + number / 200) + "." + std::to_string(1 + number % 200);
  request.resolve.destination = CmAddressOf(text.c_str(), 7);
  request.resolve.timeout_ms = INT_MAX;
  EXPECT_EQ(client.Ask(request), 0) << text;
  return id;
}

bool IsToldAtOnce(CmTestClient& client, CmHandle channel) {
  pollfd p = {client.FdOf(channel), POLLIN, 0};
  return poll(&p, 1, kAtOnceMs) == 1;
}

TEST(LookUps, OneProgramsDoNotTakeThePlaceOfAnothers) {
  OnASilentNetwork([](TestDaemon& daemon) {
    CmTestClient greedy(daemon), other(daemon);
    const CmHandle all = greedy.CreateChannel();
    for (int i = 0; i < kMany; ++i) LookFor(greedy, all, i);
    EXPECT_TRUE(IsToldAtOnce(greedy, all)) << "beyond its share they count as found";
    const CmHandle channel = other.CreateChannel();
    LookFor(other, channel, kMany);
    EXPECT_FALSE(IsToldAtOnce(other, channel)) << "nobody has looked";
  });
}

TEST(LookUps, GoWithWhoeverAskedForThem) {
  OnASilentNetwork([](TestDaemon& daemon) {
    // As many programs as have all places together.
    for (int program = 0; program < 8; ++program) {
      CmTestClient client(daemon);
      const CmHandle channel = client.CreateChannel();
      for (int i = 0; i < kMany / 3; ++i) LookFor(client, channel, i);
    }
    EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("cm_sessions") == 0; }));
    CmTestClient other(daemon);
    const CmHandle channel = other.CreateChannel();
    // Identifiers that go one by one leave nothing, either.
    for (int i = 0; i < kMany; ++i) {
      const CmHandle id = LookFor(other, channel, i);
      ASSERT_EQ(other.Ask(shm::CmOp::kDestroyId, id), 0);
    }
    LookFor(other, channel, kMany);
    EXPECT_FALSE(IsToldAtOnce(other, channel)) << "nobody has looked";
  });
}

}  // namespace
}  // namespace verbena::softnic
