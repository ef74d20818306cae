// Looks for the way to destinations that rdma_cm's clients want to reach on the host's network, as
// the kernel does for its own rdma_cm: a route at once, then the next hop's hardware address.
//
// Thread: control.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/instant.h"
#include "softnic/cm/cm_service.h"
#include "transport/port/udp/neighbours.h"
#include "transport/port/udp/netns.h"

namespace verbena::softnic {

class CmLookUps {
 public:
  // `error`: 0, or ETIMEDOUT.
  using Done = std::function<void(const CmService::LookUp& what, int error)>;
  // `where`: whose network it is.
  CmLookUps(boost::asio::io_context* io, const transport::NetworkNamespace* where, Done done);

  // 0: `done` is told, now or later. ENETUNREACH, EHOSTUNREACH and the like: there is no route.
  int Start(const CmService::LookUp& what);
  // Who asked is no more: `done` is not told.
  void Withdraw(uint32_t session);
  void Withdraw(uint32_t session, shm::CmHandle id);

 private:
  struct Pending {
    CmService::LookUp what;
    transport::NextHop hop;
    Instant due;
  };

  // 0 or errno, as Start. If nobody is to wait for an answer it counts as found.
  int FindWay(const CmService::LookUp& what, transport::NextHop* hop, bool* counts_as_found);
  void SolicitAll();
  bool HasRoom(uint32_t session) const;
  bool WatchNeighbours();
  void AwaitNeighbours();
  void Look();
  void ArmTimer();

  boost::asio::io_context* const io_;
  const transport::NetworkNamespace* const where_;
  const Done done_;
  std::vector<Pending> pending_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> neighbours_;
};

}  // namespace verbena::softnic
