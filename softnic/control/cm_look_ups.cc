#include "softnic/control/cm_look_ups.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/clock/monotonic_clock.h"
#include "softnic/control/unique_fd.h"
#include "softnic/control/watch.h"

namespace verbena::softnic {

using boost::system::error_code;

namespace {

// The kernel gives up a neighbour after three seconds; who waits longer has it look again.
constexpr Duration kSolicitInterval = Milliseconds(1000);
// Looked for at a time; each costs a question whenever something about a neighbour changes. More
// count as found: then it is packets that tell. No session takes all.
constexpr size_t kPendingMax = 256;
constexpr ptrdiff_t kPendingPerSessionMax = 64;
// Longer than anybody waits; a program's int may be anything.
constexpr uint32_t kTimeoutMaxMs = 24 * 3600 * 1000;

}  // namespace

CmLookUps::CmLookUps(boost::asio::io_context* io, const transport::NetworkNamespace* where,
                     Done done)
    : io_(io), where_(where), done_(std::move(done)), timer_(*io) {}

int CmLookUps::Start(const CmService::LookUp& what) {
  transport::NextHop hop;
  bool counts_as_found = false;
  if (int error = FindWay(what, &hop, &counts_as_found); error != 0) return error;
  if (counts_as_found) {
    done_(what, 0);
    return 0;
  }
  const auto timeout = Milliseconds(std::min(what.timeout_ms, kTimeoutMaxMs));
  pending_.push_back({what, hop, ReadMonotonicClock() + timeout});
  ArmTimer();
  return 0;
}

int CmLookUps::FindWay(const CmService::LookUp& what, transport::NextHop* hop,
                       bool* counts_as_found) {
  const transport::NamespaceVisit visit(where_);
  int error = transport::FindNextHop(what.local, what.remote, what.scope_id, hop);
  if (error != 0) return error;
  // Watched first: what becomes known between a look and the watch would be told to nobody.
  const bool may_ask = !hop->is_here && HasRoom(what.session) && WatchNeighbours();
  *counts_as_found = !may_ask || transport::IsKnown(*hop);
  if (!*counts_as_found) transport::Solicit(what.local, what.remote, what.scope_id);
  return 0;
}

void CmLookUps::SolicitAll() {
  const transport::NamespaceVisit visit(where_);
  for (const Pending& pending : pending_) {
    transport::Solicit(pending.what.local, pending.what.remote, pending.what.scope_id);
  }
}

bool CmLookUps::HasRoom(uint32_t session) const {
  const auto is_its = [&](const Pending& pending) { return pending.what.session == session; };
  return pending_.size() < kPendingMax &&
         std::count_if(pending_.begin(), pending_.end(), is_its) < kPendingPerSessionMax;
}

void CmLookUps::Withdraw(uint32_t session) {
  std::erase_if(pending_, [&](const Pending& p) { return p.what.session == session; });
  ArmTimer();
}

void CmLookUps::Withdraw(uint32_t session, shm::CmHandle id) {
  std::erase_if(pending_, [&](const Pending& pending) {
    return pending.what.session == session && pending.what.id == id;
  });
  ArmTimer();
}

// False: they can't be watched here; then it is packets that tell.
bool CmLookUps::WatchNeighbours() {
  if (neighbours_ != nullptr) return true;
  UniqueFd fd(transport::OpenNeighbourEvents());
  auto neighbours = std::make_unique<boost::asio::posix::stream_descriptor>(*io_);
  if (!fd.IsValid() || Watch(&fd, neighbours.get()) != 0) return false;
  neighbours_ = std::move(neighbours);
  AwaitNeighbours();
  return true;
}

void CmLookUps::AwaitNeighbours() {
  neighbours_->async_wait(boost::asio::posix::stream_descriptor::wait_read,
                          [this](error_code error) {
                            if (error) return;
                            transport::DrainNeighbourEvents(neighbours_->native_handle());
                            Look();
                            AwaitNeighbours();
                          });
}

void CmLookUps::Look() {
  const Instant now = ReadMonotonicClock();
  std::vector<std::pair<CmService::LookUp, int>> ended;
  {
    const transport::NamespaceVisit visit(where_);
    std::erase_if(pending_, [&](const Pending& pending) {
      const bool is_known = transport::IsKnown(pending.hop);
      if (!is_known && pending.due > now) return false;
      ended.emplace_back(pending.what, is_known ? 0 : ETIMEDOUT);
      return true;
    });
  }
  for (const auto& [what, error] : ended) done_(what, error);
  ArmTimer();
}

void CmLookUps::ArmTimer() {
  if (pending_.empty()) {
    timer_.cancel();
    return;
  }
  Instant next = ReadMonotonicClock() + kSolicitInterval;
  for (const Pending& pending : pending_) next = std::min(next, pending.due);
  timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next.ns)));
  timer_.async_wait([this](error_code error) {
    if (error) return;
    SolicitAll();
    Look();
  });
}

}  // namespace verbena::softnic
