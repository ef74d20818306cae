// Helpers of clients (core/shm/assist.h) that don't do what they are for.
#include <gtest/gtest.h>

#include <thread>

#include "core/shm/assist.h"
#include "softnic/daemon/test_client.h"

namespace verbena::softnic {
namespace {

using shm::CommandOp;

// A client that says it has a helper: the test is it, or nobody is.
class HelpedClient {
 public:
  explicit HelpedClient(const TestDaemon& daemon) {
    EXPECT_TRUE(client.Attach(daemon.directory()));
    shm::OpenAssistRequest request = {};
    EXPECT_EQ(client.Command(CommandOp::kOpenAssist, &request, sizeof(request)), 0);
    for (auto [kind, fd] : {std::pair{shm::FdKind::kAssistFile, &file},
                            std::pair{shm::FdKind::kAssistSocket, &bell}}) {
      shm::FdMessage message = {};
      EXPECT_TRUE(client.Receive(&message, sizeof(message), fd, 1));
      EXPECT_EQ(message.kind, static_cast<uint32_t>(kind));
    }
    area = static_cast<shm::AssistArea*>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    EXPECT_NE(area, MAP_FAILED);
    area->helper_sleeps.store(1);
    shm::HandleReply pd = {};
    EXPECT_EQ(client.Command(CommandOp::kAllocPd, nullptr, 0, &pd, sizeof(pd)), 0);
    region.pd = pd.handle;
    region.addr = region.iova = reinterpret_cast<uint64_t>(&word);
    region.length = sizeof(word);
    region.flags = shm::kRegMrAssisted;
  }
  ~HelpedClient() {
    munmap(area, 4096);
    Leave();
    close(file);
  }
  void Leave() {
    if (bell >= 0) close(bell);
    bell = -1;
  }
  void BeginToRegister() { client.Submit(1, CommandOp::kRegMr, &region, sizeof(region)); }
  int Register(shm::RegMrReply* reply = nullptr) {
    BeginToRegister();
    return client.Await(1, reply, reply == nullptr ? 0 : sizeof(*reply));
  }
  bool IsAsked() {
    return Eventually([&] { return area->requested.load() != area->answered.load(); });
  }

  TestClient client;
  shm::AssistArea* area = nullptr;
  shm::RegMrRequest region = {};
  uint64_t word = 42;
  int file = -1, bell = -1;
};

TEST(Helper, IsGivenOnceInASession) {
  TestDaemon daemon;
  HelpedClient helped(daemon);
  shm::OpenAssistRequest request = {};
  EXPECT_EQ(helped.client.Command(CommandOp::kOpenAssist, &request, sizeof(request)), EBUSY);
  EXPECT_NE(ftruncate(helped.file, 0), 0);
}

TEST(Helper, RegionsAreRegisteredByIt) {
  TestDaemon daemon;
  HelpedClient helped(daemon);
  std::thread helper([&] {
    for (uint32_t number = 1; number <= 2; ++number) {  // the first byte, and the last
      while (helped.area->requested.load() != number) {
        if (!WaitReadable(helped.bell)) return;
        char bells[8];
        if (recv(helped.bell, bells, sizeof(bells), 0) <= 0) return;
      }
      helped.area->result = static_cast<int64_t>(helped.area->pieces[0].bytes);
      helped.area->answered.store(number);
      send(helped.bell, "", 1, MSG_NOSIGNAL);
    }
  });
  helped.region.length = 16;
  EXPECT_EQ(helped.Register(), 0);
  helper.join();
  EXPECT_NE(daemon.Ask("{\"op\":\"show\",\"kind\":\"mr\"}").find("assisted"), std::string::npos);
}

// As one whose pages hang: it waits for itself, and nobody waits for it.
TEST(Helper, ThatNeverAnswersHoldsUpItsOwnSessionOnly) {
  TestDaemon daemon;
  int baseline = daemon.IdleFdCount();
  {
    HelpedClient silent(daemon), another(daemon);
    silent.BeginToRegister();
    ASSERT_TRUE(silent.IsAsked());
    another.BeginToRegister();
    EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("slow_processes") == 1; }))
        << "they are of one process";
    const pid_t honest = fork();  // another process: this one waits for itself
    if (honest == 0) {
      TestClient client;
      bool is_served = client.Attach(daemon.directory());
      for (int i = 0; i < 100; ++i) is_served = is_served && client.Command(CommandOp::kNop) == 0;
      _exit(is_served ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(honest, &status, 0), honest);
    EXPECT_EQ(status, 0) << "a neighbour waited";
    // Closing ends the wait, though the helper's end stays open.
    silent.client.Close();
    another.client.Close();
    EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("sessions") == 0; }));
    EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("slow_processes") == 0; }))
        << "nothing hangs any more, nor does a thread";
  }
  EXPECT_TRUE(Eventually([&] { return daemon.StatusNumber("sessions") == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon.FdCount() <= baseline; }));
}

TEST(Helper, ThatLeavesFailsTheRegistration) {
  TestDaemon daemon;
  HelpedClient helped(daemon);
  helped.BeginToRegister();
  ASSERT_TRUE(helped.IsAsked());
  helped.Leave();
  EXPECT_NE(helped.client.Await(1), 0);
  EXPECT_EQ(helped.Register(), EOPNOTSUPP) << "for good";
  EXPECT_EQ(helped.client.Command(CommandOp::kNop), 0);
  helped.region.flags = 0;
  EXPECT_EQ(helped.Register(), 0) << "by the kernel, as who asks for nothing";
}

TEST(Helper, ThatLiesRegistersNothing) {
  TestDaemon daemon;
  HelpedClient helped(daemon);
  helped.BeginToRegister();
  ASSERT_TRUE(helped.IsAsked());
  helped.area->result = INT64_MAX;
  helped.area->answered.store(1);
  send(helped.bell, "", 1, MSG_NOSIGNAL);
  EXPECT_EQ(helped.client.Await(1), EFAULT);
}

TEST(Helper, RegionWithoutOneIsRefused) {
  TestDaemon daemon;
  TestClient client;
  ASSERT_TRUE(client.Attach(daemon.directory()));
  shm::HandleReply pd = {};
  ASSERT_EQ(client.Command(CommandOp::kAllocPd, nullptr, 0, &pd, sizeof(pd)), 0);
  shm::RegMrRequest region = {};
  region.pd = pd.handle;
  region.addr = region.iova = reinterpret_cast<uint64_t>(&pd);
  region.length = sizeof(pd);
  region.flags = shm::kRegMrAssisted;
  EXPECT_EQ(client.Command(CommandOp::kRegMr, &region, sizeof(region)), EOPNOTSUPP);
}

}  // namespace
}  // namespace verbena::softnic
