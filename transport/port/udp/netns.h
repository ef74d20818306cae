// Network namespaces besides the process's own. The kernel asks which one a thread is in when it
// makes a socket; the socket stays there. So whoever makes one, or asks netlink for something,
// visits the namespace meanwhile.
//
// Spec: network_namespaces(7), setns(2)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace verbena::transport {

class NetworkNamespace {
 public:
  NetworkNamespace() = default;  // the process's own
  ~NetworkNamespace();
  NetworkNamespace(const NetworkNamespace&) = delete;
  NetworkNamespace& operator=(const NetworkNamespace&) = delete;

  // `name`: as `ip netns` lists it, or a path as /proc/1234/ns/net. The calling thread has been
  // there and back when it returns. Empty, or what is wrong and what to do.
  std::string Open(const std::string& name);

  // Empty and 0: the process's own. The inode is what others see of it, too (/proc/PID/ns/net).
  const std::string& name() const { return name_; }
  uint64_t inode() const { return inode_; }

 private:
  friend class NamespaceVisit;
  std::string name_;
  uint64_t inode_ = 0;
  int here_ = -1, there_ = -1;
};

// The calling thread, which was in the process's own namespace, is in `where` until the end of the
// scope. nullptr, as the own one: it stays. One visit at a time.
class NamespaceVisit {
 public:
  explicit NamespaceVisit(const NetworkNamespace* where);
  ~NamespaceVisit();
  NamespaceVisit(const NamespaceVisit&) = delete;
  NamespaceVisit& operator=(const NamespaceVisit&) = delete;

 private:
  const NetworkNamespace* const where_;  // nullptr: nowhere
};

class NetworkNamespaces {
 public:
  NetworkNamespaces();

  // The same one by whatever name; "" is the process's own. Empty, or what is wrong.
  std::string Find(const std::string& name, const NetworkNamespace** out);
  // The process's own where that one was not asked for.
  const NetworkNamespace* Of(uint64_t inode) const;
  // The process's own first.
  const std::vector<std::unique_ptr<NetworkNamespace>>& all() const { return all_; }

 private:
  std::vector<std::unique_ptr<NetworkNamespace>> all_;
};

}  // namespace verbena::transport
