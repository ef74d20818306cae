// The receiving half of a RDM endpoint: an address and port, where the NIC accepts lanes of peers
// by itself, and whose the messages are that come by them.
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <utility>

#include "core/base/types.h"
#include "fi_shim/address.h"
#include "fi_shim/cm_calls.h"
#include "fi_shim/cm_channel.h"
#include "fi_shim/rdm.h"

namespace verbena::fi {
namespace {

// The NIC's address, where the program names none, or any.
int OwnAddress(Domain* domain, SockAddress* out) {
  constexpr uint32_t kIpv4GidIndex = 1;  // 0 is the link-local one
  const shm::PortRequest request = {1, kIpv4GidIndex};
  shm::QueryGidTableReply reply = {};
  const int error = Execute(domain, shm::CommandOp::kQueryGidTable, request, &reply);
  if (error != 0) return error;
  if (reply.count == 0 || reply.entries[0].index != kIpv4GidIndex) return -FI_EADDRNOTAVAIL;
  *out = {};
  out->in.sin_family = AF_INET;
  memcpy(&out->in.sin_addr, reply.entries[0].raw + 12, sizeof(out->in.sin_addr));
  return 0;
}

int WantedAddress(RdmEndpoint* ep, SockAddress* out) {
  *out = {};
  if (ep->info->src_addr == nullptr || ep->info->src_addrlen < sizeof(sockaddr_in)) {
    return OwnAddress(ep->domain, out);
  }
  memcpy(out, ep->info->src_addr,
         ep->info->src_addrlen < sizeof(*out) ? ep->info->src_addrlen : sizeof(*out));
  // A peer has to be told of one address: that of the NIC, with the port that was asked for.
  if (!IsAny(*out)) return 0;
  if (out->sa.sa_family == AF_INET) {
    const uint16_t port = PortOf(*out);
    const int error = OwnAddress(ep->domain, out);
    SetPort(out, port);
    return error;
  }
  return -FI_EADDRNOTAVAIL;
}

int OpenChannel(RdmEndpoint* ep) {
  if (ep->cm_channel != 0) return 0;
  int error = -client::CmSession::ForThisProcess(&ep->cm);
  if (error != 0) return error;
  shm::CmReply reply;
  error = -ep->cm->Execute(NewCmRequest(shm::CmOp::kCreateChannel, 0), &reply, &ep->cm_fd);
  if (error != 0) return error;
  if (ep->cm_fd < 0) {  // the kernel drops a fd that finds no place
    AskCm(ep->cm, shm::CmOp::kDestroyChannel, reply.handle);
    return -FI_EMFILE;
  }
  ep->cm_channel = reply.handle;
  return 0;
}

uint64_t HashOf(uint32_t number) { return number * uint64_t{0x9e37'79b9'7f4a'7c15} >> 32; }

// nullptr: no memory. The lock of sources is held.
Source* SlotOf(RdmEndpoint* ep, uint32_t number) {
  if (2 * (ep->source_count + 1) > ep->source_slots) {
    constexpr size_t kFirstSlots = 32;
    const size_t wanted = ep->source_slots == 0 ? kFirstSlots : 2 * ep->source_slots;
    auto* grown = static_cast<Source*>(calloc(wanted, sizeof(Source)));
    if (grown == nullptr) return nullptr;
    for (size_t i = 0; i < ep->source_slots; ++i) {
      if (ep->sources[i].number == 0) continue;
      size_t at = HashOf(ep->sources[i].number) & (wanted - 1);
      while (grown[at].number != 0) at = (at + 1) & (wanted - 1);
      grown[at] = ep->sources[i];
    }
    free(ep->sources);
    ep->sources = grown;
    ep->source_slots = wanted;
  }
  size_t at = HashOf(number) & (ep->source_slots - 1);
  while (ep->sources[at].number != 0 && ep->sources[at].number != number) {
    at = (at + 1) & (ep->source_slots - 1);
  }
  return &ep->sources[at];
}

}  // namespace

int BindAddress(RdmEndpoint* ep) {
  if (ep->has_address) return 0;
  SockAddress wanted;
  int error = WantedAddress(ep, &wanted);
  if (error == 0) error = OpenChannel(ep);
  if (error != 0) return error;
  shm::CmRequest request = NewCmRequest(shm::CmOp::kCreateId, 0);
  request.create.channel = ep->cm_channel;
  request.create.port_space = shm::kPortSpaceRdm;
  request.create.qp_type = kQpTypeRc;
  shm::CmReply reply;
  error = -ep->cm->Execute(request, &reply);
  if (error != 0) return error;
  const shm::CmHandle id = reply.handle;
  request = NewCmRequest(shm::CmOp::kBind, id);
  client::ToCmAddress(&wanted, &request.bind.address);
  error = -ep->cm->Execute(request, &reply);
  if (error == 0) error = AskCm(ep->cm, shm::CmOp::kQuery, id, 0, &reply);
  if (error != 0) {
    AskCm(ep->cm, shm::CmOp::kDestroyId, id);
    return error;
  }
  client::FromCmAddress(reply.query.source, &ep->address);
  ep->place_id = id;
  ep->has_address = true;
  return 0;
}

int Rebind(RdmEndpoint* ep) {
  if (!ep->has_address) return BindAddress(ep);
  SockAddress wanted;
  if (const int error = WantedAddress(ep, &wanted); error != 0) return error;
  if (IsSame(wanted, ep->address)) return 0;
  const shm::CmHandle before_id = std::exchange(ep->place_id, 0);
  const SockAddress before = ep->address;
  ep->has_address = false;
  const int error = BindAddress(ep);
  if (error == 0) {
    AskCm(ep->cm, shm::CmOp::kDestroyId, before_id);
  } else {
    ep->place_id = before_id;
    ep->address = before;
    ep->has_address = true;
  }
  return error;
}

namespace {

int ServePlace(RdmEndpoint* ep) {
  shm::CmRequest request = NewCmRequest(shm::CmOp::kServePlace, ep->place_id);
  memcpy(request.place.token, ep->place_token, shm::kPlaceTokenBytes);
  const LaneKey key = LaneKeyOf(ep);
  request.place.auth_key_bytes = static_cast<uint8_t>(key.bytes);
  if (key.bytes != 0) memcpy(request.place.auth_key, key.data, key.bytes);
  shm::CmReply reply;
  return -ep->cm->Execute(request, &reply);
}

}  // namespace

LaneKey LaneKeyOf(const RdmEndpoint* ep) {
  const fi_ep_attr* attr = ep->info->ep_attr;
  if (attr != nullptr && attr->auth_key != nullptr && attr->auth_key_size != 0) {
    return {attr->auth_key, attr->auth_key_size};
  }
  return {ep->domain->auth_key, ep->domain->auth_key_size};
}

int MakePlace(RdmEndpoint* ep) {
  shm::CreatePlaceRequest request = {};
  request.pd = ep->pd;
  request.srq = ep->receives->srq.handle;
  request.recv_cq = ep->rx_hw->handle;
  request.cookie = ReceiveIdOf(ep);
  const uint64_t caps = ep->info->caps;
  if ((caps & FI_REMOTE_WRITE) != 0) request.access_flags |= access::kRemoteWrite;
  if ((caps & FI_REMOTE_READ) != 0) request.access_flags |= access::kRemoteRead;
  if (getrandom(ep->place_token, sizeof(ep->place_token), 0) != sizeof(ep->place_token)) {
    return -FI_EIO;
  }
  memcpy(request.token, ep->place_token, sizeof(request.token));
  int error = 0;
  if ((caps & FI_RMA_EVENT) != 0) {
    error = CounterOf(ep->cntr_remote_read, &request.read_counter);
    if (error == 0) error = CounterOf(ep->cntr_remote_write, &request.write_counter);
    ep->counts_remote_by_nic = true;
  }
  if (error != 0) return error;
  shm::CreatePlaceReply reply = {};
  error = Execute(ep->domain, shm::CommandOp::kCreatePlace, request, &reply);
  if (error != 0) return error;
  ep->place = reply.place;
  // Before the first lane comes.
  ep->receive_qp = ReceiverOfPlace(reply.place);
  if (ep->receives->is_shared) RegisterReceiver(ep->receives, ep);
  error = ServePlace(ep);
  if (error != 0) UnmakePlace(ep);
  return error;
}

void UnmakePlace(RdmEndpoint* ep) {
  if (ep->place_id != 0) AskCm(ep->cm, shm::CmOp::kDestroyId, ep->place_id);
  ep->place_id = 0;
  ep->has_address = false;
  if (ep->place == 0) return;
  const shm::HandleRequest request = {ep->place, 0};
  ep->domain->session->Execute(shm::CommandOp::kDestroyPlace, &request, sizeof(request), nullptr,
                               0);
  ep->place = 0;
}

fi_addr_t SourceOf(RdmEndpoint* ep, uint32_t number, SockAddress* address) {
  *address = {};
  if (ep->av == nullptr || number == 0) return FI_ADDR_NOTAVAIL;
  const uint32_t insertions = ep->av->insertions();
  const uint32_t removals = ep->av->removals();
  Guard guard(ep->sources_lock);
  Source* source = SlotOf(ep, number);
  if (source == nullptr) return FI_ADDR_NOTAVAIL;
  if (source->number == 0) {
    const shm::QuerySourceRequest request = {ep->place, number};
    shm::QuerySourceReply reply = {};
    if (Execute(ep->domain, shm::CommandOp::kQuerySource, request, &reply) != 0) {
      return FI_ADDR_NOTAVAIL;
    }
    *source = {};
    source->number = number;
    client::FromCmAddress(reply.address, &source->address);
    ++ep->source_count;
  } else {
    const bool is_known = source->fi_addr != FI_ADDR_NOTAVAIL;
    if (!is_known) *address = source->address;
    if (is_known ? source->removals == removals : source->insertions == insertions) {
      return source->fi_addr;
    }
  }
  *address = source->address;
  source->fi_addr = FindByAddress(ep->av, source->address);
  source->insertions = insertions;
  source->removals = removals;
  return source->fi_addr;
}

int NumberOfSource(ReceiveContext* receives, fi_addr_t fi_addr, uint32_t* number) {
  auto* ep = static_cast<RdmEndpoint*>(receives->source_context);
  SockAddress address;
  if (!Lookup(ep->av, fi_addr, &address)) return -FI_EINVAL;
  shm::NameSourceRequest request = {};
  request.place = ep->place;
  client::ToCmAddress(&address, &request.address);
  request.address.scope_id = request.address.flow_info = 0;
  shm::HandleReply reply = {};
  const int error = Execute(ep->domain, shm::CommandOp::kNameSource, request, &reply);
  if (error == 0) *number = reply.handle;
  return error;
}

}  // namespace verbena::fi
