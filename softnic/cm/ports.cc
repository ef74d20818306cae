#include "softnic/cm/ports.h"

#include <arpa/inet.h>
#include <errno.h>

#include <algorithm>

#include "softnic/cm/addresses.h"

namespace verbena::softnic {
namespace {

// Linux's ip_local_port_range.
constexpr uint16_t kChosenFirst = 32'768, kChosenLast = 60'999;

}  // namespace

int CmPortTable::Check(const std::vector<CmPortHolder>& others, const CmPortHolder& holder,
                       bool may_share) {
  for (const CmPortHolder& other : others) {
    if (holder.shares_in_session && other.owner.session == holder.owner.session) continue;
    if (other.owner == holder.owner || (may_share && other.may_share)) continue;
    if (holder.is_family_only && other.is_family_only &&
        holder.address.family != other.address.family) {
      continue;
    }
    if (IsWildcard(holder.address) || IsWildcard(other.address)) return EADDRNOTAVAIL;
    if (IsSameHost(holder.address, other.address)) return EADDRINUSE;
  }
  return 0;
}

int CmPortTable::ChoosePort(uint16_t port_space, CmPortHolder* holder) {
  constexpr uint32_t kCount = kChosenLast - kChosenFirst + 1;
  const uint32_t start = static_cast<uint32_t>(random_() % kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    const auto port = static_cast<uint16_t>(kChosenFirst + (start + i) % kCount);
    // Not the last one again: a late message may be meant for whoever had it.
    if (port == last_chosen_ || ports_.contains({port_space, port})) continue;
    last_chosen_ = port;
    holder->address.port = htons(port);
    ports_[{port_space, port}].push_back(*holder);
    return 0;
  }
  return EADDRNOTAVAIL;
}

int CmPortTable::Bind(uint16_t port_space, CmPortHolder* holder) {
  if (holder->address.port == 0) return ChoosePort(port_space, holder);
  const Key key{port_space, ntohs(holder->address.port)};
  if (auto found = ports_.find(key); found != ports_.end()) {
    if (int error = Check(found->second, *holder, holder->may_share); error != 0) return error;
  }
  ports_[key].push_back(*holder);
  return 0;
}

int CmPortTable::CheckListen(uint16_t port_space, const CmPortHolder& holder) const {
  auto found = ports_.find({port_space, ntohs(holder.address.port)});
  return found == ports_.end() ? 0 : Check(found->second, holder, /*may_share=*/false);
}

void CmPortTable::Update(uint16_t port_space, const CmPortHolder& holder) {
  auto found = ports_.find({port_space, ntohs(holder.address.port)});
  if (found == ports_.end()) return;
  for (CmPortHolder& held : found->second) {
    if (held.owner == holder.owner) held = holder;
  }
}

void CmPortTable::Release(uint16_t port_space, const CmPortHolder& holder) {
  auto found = ports_.find({port_space, ntohs(holder.address.port)});
  if (found == ports_.end()) return;
  std::erase_if(found->second, [&](const CmPortHolder& h) { return h.owner == holder.owner; });
  if (found->second.empty()) ports_.erase(found);
}

}  // namespace verbena::softnic
