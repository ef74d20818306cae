// Network namespaces that NICs are in besides the daemon's own. The kernel asks which one a thread
// is in when it makes a socket; the socket stays there. So whoever makes one, or asks netlink for
// something, visits the namespace meanwhile.
//
// Thread: control.
// Spec: network_namespaces(7), setns(2)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "softnic/control/unique_fd.h"

namespace verbena::softnic {

class NetworkNamespace {
 public:
  NetworkNamespace() = default;  // the daemon's own

  // `name`: as `ip netns` lists it, or a path as /proc/1234/ns/net. Has been there and back when it
  // returns. Empty, or what is wrong and what to do.
  std::string Open(const std::string& name);

  // Empty and 0: the daemon's own. The inode is what others see of it, too (/proc/PID/ns/net).
  const std::string& name() const { return name_; }
  uint64_t inode() const { return inode_; }

 private:
  friend class NamespaceVisit;
  std::string name_;
  uint64_t inode_ = 0;
  UniqueFd here_, there_;
};

// The calling thread is in the namespace until the end of the scope. To the daemon's own: nothing.
class NamespaceVisit {
 public:
  explicit NamespaceVisit(const NetworkNamespace& where);
  ~NamespaceVisit();
  NamespaceVisit(const NamespaceVisit&) = delete;
  NamespaceVisit& operator=(const NamespaceVisit&) = delete;

 private:
  const NetworkNamespace& where_;
};

class NetworkNamespaces {
 public:
  NetworkNamespaces();

  // The same one by whatever name; "" is the daemon's own. Empty, or what is wrong.
  std::string Find(const std::string& name, const NetworkNamespace** out);
  // The daemon's own where no NIC is in that one.
  const NetworkNamespace& Of(uint64_t inode) const;
  // The daemon's own first.
  const std::vector<std::unique_ptr<NetworkNamespace>>& all() const { return all_; }

 private:
  std::vector<std::unique_ptr<NetworkNamespace>> all_;
};

}  // namespace verbena::softnic
