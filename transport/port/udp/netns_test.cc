#include "transport/port/udp/netns.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <thread>

#include "transport/port/udp/interfaces.h"
#include "transport/port/udp/network_namespace.h"
#include "transport/port/udp/open_udp_port.h"

namespace verbena::transport {
namespace {

uint64_t InodeOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

uint64_t OwnInode() { return InodeOf("/proc/thread-self/ns/net"); }

// A namespace that lives as long as a process that does nothing else.
class Elsewhere {
 public:
  Elsewhere() {
    int ready[2];
    if (pipe(ready) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool is_made = unshare(CLONE_NEWNET) == 0 && Run("ip link set lo up") &&
                           Run("ip link add left type veth peer name right") &&
                           Run("ip addr add 10.9.9.1/24 dev left") && Run("ip link set right up") &&
                           Run("ip link set left up");
      (void)!write(ready[1], is_made ? "y" : "n", 1);
      pause();
      _exit(0);
    }
    char answer = 'n';
    is_made_ = read(ready[0], &answer, 1) == 1 && answer == 'y';
    close(ready[0]);
    close(ready[1]);
  }
  ~Elsewhere() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  bool is_made() const { return is_made_; }
  std::string path() const { return "/proc/" + std::to_string(child_) + "/ns/net"; }

 private:
  pid_t child_ = -1;
  bool is_made_ = false;
};

int Visit() {
  Elsewhere there;
  if (!there.is_made()) return kNotAllowed;
  const uint64_t own = OwnInode();
  NetworkNamespaces namespaces;
  const NetworkNamespace* where = nullptr;
  REQUIRE(namespaces.Find(there.path(), &where).empty());
  REQUIRE(where->inode() == InodeOf(there.path()) && where->name() == there.path());
  REQUIRE(OwnInode() == own);
  InterfaceList list;
  {
    const NamespaceVisit visit(where);
    REQUIRE(OwnInode() == where->inode());
    REQUIRE(ReadInterfaces(&list));
  }
  REQUIRE(OwnInode() == own);
  REQUIRE(list.IndexOf(Gid::FromIpv4(0x0a09'0901)) != 0);
  {
    const NamespaceVisit stays(nullptr), stays_too(namespaces.Of(0));
    REQUIRE(OwnInode() == own);
  }
  return 0;
}

int OneByWhateverName() {
  Elsewhere there;
  if (!there.is_made()) return kNotAllowed;
  NetworkNamespaces namespaces;
  const NetworkNamespace *first = nullptr, *again = nullptr, *own = nullptr;
  REQUIRE(namespaces.Find(there.path(), &first).empty());
  REQUIRE(namespaces.Find("/" + there.path(), &again).empty() && first == again);
  REQUIRE(namespaces.Find("/proc/self/ns/net", &own).empty() && own->inode() == 0);
  REQUIRE(own == namespaces.all().front().get() && namespaces.all().size() == 2);
  REQUIRE(namespaces.Of(first->inode()) == first && namespaces.Of(12345) == own);
  return 0;
}

// Also those that are opened later, by another thread: of groups.
int SocketsOfAPort() {
  Elsewhere there;
  if (!there.is_made()) return kNotAllowed;
  NetworkNamespaces namespaces;
  const NetworkNamespace* where = nullptr;
  REQUIRE(namespaces.Find(there.path(), &where).empty());
  UdpPortConfig config;
  config.addresses = {{Gid::FromIpv4(0x0a09'0901)}};
  config.netns = where;
  UdpPortError error;
  auto port = OpenUdpPort(config, NetIo::kEpoll, &error);
  REQUIRE(port != nullptr);
  int joined = -1;
  std::thread([&] { joined = port->JoinGroup(Gid::FromIpv4(0xe909'0909)); }).join();
  REQUIRE(joined == 0);
  const NamespaceVisit visit(where);
  // The kernel writes addresses as numbers of the host's order.
  REQUIRE(Run("grep -q 0109090A:12B7 /proc/net/udp"));
  REQUIRE(Run("grep -q 090909E9 /proc/net/igmp"));
  return 0;
}

void Judge(int (*body)()) {
  const int result = RunInNamespace(body);
  if (result == kNotAllowed) GTEST_SKIP() << "no namespaces for us here";
  EXPECT_EQ(result, 0);
}

TEST(NetworkNamespace, TheThreadIsThereForTheVisit) { Judge(Visit); }
TEST(NetworkNamespace, IsOneByWhateverName) { Judge(OneByWhateverName); }
TEST(NetworkNamespace, HasAllSocketsOfAPort) { Judge(SocketsOfAPort); }

TEST(NetworkNamespace, SaysWhyItCannotBeEntered) {
  NetworkNamespaces namespaces;
  const NetworkNamespace* where = nullptr;
  const std::string missing = namespaces.Find("nosuch", &where);
  EXPECT_NE(missing.find("there is no /run/netns/nosuch"), std::string::npos) << missing;
  EXPECT_EQ(where->inode(), 0u);
  // Of a file that is none, or for us whoever we are: one or the other, never entered.
  const std::string wrong = namespaces.Find("/proc/self/ns/uts", &where);
  EXPECT_TRUE(wrong.find("no network namespace") != std::string::npos ||
              wrong.find("not permitted") != std::string::npos)
      << wrong;
  EXPECT_EQ(namespaces.all().size(), 1u);
}

}  // namespace
}  // namespace verbena::transport
