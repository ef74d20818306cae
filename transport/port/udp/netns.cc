#include "transport/port/udp/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "core/base/check.h"

namespace verbena::transport {
namespace {

constexpr char kOwn[] = "/proc/thread-self/ns/net";

// Where `ip netns` puts them.   Spec: ip-netns(8)
std::string PathOf(const std::string& name) {
  return name.find('/') == std::string::npos ? "/run/netns/" + name : name;
}

std::string Explain(const std::string& name, int error) {
  const std::string what = "netns=" + name + ": ";
  switch (error) {
    case ENOENT:
      return what + "there is no " + PathOf(name) +
             "; `ip netns` lists the names there are, and a path such as /proc/1234/ns/net will do";
    case EINVAL:
      return what + PathOf(name) + " is no network namespace";
    case EPERM:
    case EACCES:
      return what +
             "entering it is not permitted; it takes CAP_SYS_ADMIN, as root has it, or all " +
             "that `unshare --user --map-root-user` starts";
    default:
      return what + strerror(error);
  }
}

}  // namespace

NetworkNamespace::~NetworkNamespace() {
  for (int fd : {here_, there_}) {
    if (fd >= 0) close(fd);
  }
}

std::string NetworkNamespace::Open(const std::string& name) {
  here_ = open(kOwn, O_RDONLY | O_CLOEXEC);
  if (here_ < 0) return std::string("can't open ") + kOwn + ": " + strerror(errno);
  there_ = open(PathOf(name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat here, there;
  if (there_ < 0 || fstat(there_, &there) != 0 || fstat(here_, &here) != 0 ||
      setns(there_, CLONE_NEWNET) != 0) {
    return Explain(name, errno);
  }
  // Who may not come back must not stay: the process ends.
  if (setns(here_, CLONE_NEWNET) != 0) return Explain(name, errno);
  if (there.st_ino == here.st_ino) return "";
  name_ = name;
  inode_ = there.st_ino;
  return "";
}

// That it may be entered, and left, has been tried; what is left is a kernel without memory for a
// few bytes.
NamespaceVisit::NamespaceVisit(const NetworkNamespace* where)
    : where_(where == nullptr || where->inode() == 0 ? nullptr : where) {
  VERBENA_CHECK(where_ == nullptr || setns(where_->there_, CLONE_NEWNET) == 0);
}

NamespaceVisit::~NamespaceVisit() {
  VERBENA_CHECK(where_ == nullptr || setns(where_->here_, CLONE_NEWNET) == 0);
}

NetworkNamespaces::NetworkNamespaces() { all_.push_back(std::make_unique<NetworkNamespace>()); }

std::string NetworkNamespaces::Find(const std::string& name, const NetworkNamespace** out) {
  *out = all_.front().get();
  if (name.empty()) return "";
  auto opened = std::make_unique<NetworkNamespace>();
  if (std::string error = opened->Open(name); !error.empty()) return error;
  for (const auto& known : all_) {
    if (known->inode() != opened->inode()) continue;
    *out = known.get();
    return "";
  }
  *out = opened.get();
  all_.push_back(std::move(opened));
  return "";
}

const NetworkNamespace* NetworkNamespaces::Of(uint64_t inode) const {
  for (const auto& known : all_) {
    if (known->inode() == inode) return known.get();
  }
  return all_.front().get();
}

}  // namespace verbena::transport
