#include "tests/simulation/host.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/base/cache_line.h"
#include "core/base/check.h"

namespace verbena::simulation {
namespace {

constexpr std::align_val_t kCacheLine{kCacheLineBytes};

}  // namespace

Client::Client(Host* client_host, uint32_t client_index, uint32_t client_nic, Instant now)
    : host(client_host),
      index(client_index),
      nic(client_nic),
      next_iova_(uint64_t{client_index + 1} << 32) {
  session = host->device.OpenSession(nic, "program", 1000 + static_cast<int>(index), this);
  host->now = now;
  shm::HandleReply reply;
  MustRaw(shm::CommandOp::kAllocPd, nullptr, 0, &reply, sizeof(reply));
  pd = reply.handle;
}

Client::~Client() {
  for (const Queue& queue : queues_) ::operator delete(queue.memory, kCacheLine);
}

int Client::Execute(shm::CommandOp op, const void* request, uint32_t bytes, void* reply,
                    uint32_t reply_bytes) {
  shm::CommandRequest command;
  command.op = static_cast<uint32_t>(op);
  command.payload_bytes = bytes;
  std::memset(command.payload, 0, sizeof(command.payload));
  if (bytes != 0) std::memcpy(command.payload, request, bytes);
  is_done_ = false;
  host->device.OnCommand(host->now, session, 0, 1, command);
  while (!is_done_) VERBENA_CHECK(host->dma.Step(host->device, host->now, /*everything=*/true));
  if (reply_bytes != 0) {
    std::memset(reply, 0, reply_bytes);
    std::memcpy(reply, reply_, std::min(reply_bytes, reply_bytes_));
  }
  return error_;
}

void Client::MustRaw(shm::CommandOp op, const void* request, uint32_t bytes, void* reply,
                     uint32_t reply_bytes) {
  VERBENA_CHECK(Execute(op, request, bytes, reply, reply_bytes) == 0);
}

void Client::CompleteCommand(uint32_t slot, uint32_t submitted, int error, const void* payload,
                             uint32_t payload_bytes, uint32_t detail) {
  VERBENA_CHECK(!is_done_);
  is_done_ = true;
  error_ = error;
  reply_bytes_ = payload_bytes;
  if (payload_bytes != 0) std::memcpy(reply_, payload, payload_bytes);
}

int Client::AllocateQueue(uint64_t bytes, softnic::QueueMemory* out) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kCacheLine));
  std::memset(memory, 0, bytes);
  *out = {RingMemory(memory, bytes), 1, queues_.size(), bytes};
  queues_.push_back({memory, bytes});
  ++live_queues;
  return 0;
}

void Client::FreeQueue(const softnic::QueueMemory& queue) {
  Queue& found = queues_[queue.offset];
  VERBENA_CHECK(found.memory != nullptr);
  ::operator delete(found.memory, kCacheLine);
  found.memory = nullptr;
  --live_queues;
}

Region Client::Register(std::byte* memory, uint32_t bytes, uint32_t access) {
  shm::RegMrRequest request{};
  request.pd = pd;
  request.access = access;
  request.addr = reinterpret_cast<uint64_t>(memory);
  request.length = bytes;
  request.iova = next_iova_;
  next_iova_ += (bytes + 0x1'ffffu) & ~0xffffu;
  auto reply = Must<shm::RegMrReply>(shm::CommandOp::kRegMr, request);
  regions.push_back({memory, bytes, request.iova, reply.lkey});
  return regions.back();
}

shm::Handle Client::CreateCq(uint32_t entries) {
  shm::CreateCqRequest request{};
  request.entries = entries;
  auto reply = Must<shm::CreateCqReply>(shm::CommandOp::kCreateCq, request);
  cq_handle = reply.cq;
  cq_entries = reply.place.entries;
  cq = CqConsumer(RingMemory(queues_[reply.place.offset].memory, reply.place.bytes),
                  reply.place.entries);
  return reply.cq;
}

shm::Handle Client::CreateSrq(uint32_t max_wr, uint32_t max_sge, WorkQueueProducer* ring) {
  shm::CreateSrqRequest request{};
  request.pd = pd;
  request.max_wr = max_wr;
  request.max_sge = max_sge;
  auto reply = Must<shm::CreateSrqReply>(shm::CommandOp::kCreateSrq, request);
  *ring = WorkQueueProducer(RingMemory(queues_[reply.place.offset].memory, reply.place.bytes),
                            reply.place.entries, reply.place.stride_bytes, reply.place.entries);
  return reply.srq;
}

QueuePair Client::CreateQp(const shm::CreateQpRequest& request) {
  auto reply = Must<shm::CreateQpReply>(shm::CommandOp::kCreateQp, request);
  QueuePair qp;
  qp.handle = reply.qp;
  qp.qpn = Qpn(reply.qpn);
  qp.doorbell = reply.sq.doorbell;
  auto ring_at = [this](const shm::QueuePlace& place) {
    return WorkQueueProducer(RingMemory(queues_[place.offset].memory, place.bytes), place.entries,
                             place.stride_bytes, place.entries);
  };
  qp.sq = ring_at(reply.sq);
  if (reply.rq.bytes != 0) qp.rq = ring_at(reply.rq);
  return qp;
}

void Client::Modify(const QueuePair& qp, const shm::QpAttr& attr, uint32_t mask) {
  Must<shm::ModifyQpReply>(shm::CommandOp::kModifyQp, shm::ModifyQpRequest{qp.handle, mask, attr});
}

void Client::Attach(const QueuePair& qp, const Gid& group) {
  shm::McastRequest request{};
  request.qp = qp.handle;
  std::memcpy(request.gid, group.raw.data(), sizeof(request.gid));
  MustRaw(shm::CommandOp::kAttachMcast, &request, sizeof(request), nullptr, 0);
}

shm::Handle Client::CreateAh(const Gid& dgid, uint8_t sgid_index) {
  shm::CreateAhRequest request{};
  request.pd = pd;
  std::memcpy(request.attr.dgid, dgid.raw.data(), sizeof(request.attr.dgid));
  request.attr.is_global = 1;
  request.attr.sgid_index = sgid_index;
  request.attr.port_num = 1;
  request.attr.hop_limit = 64;
  return Must<shm::HandleReply>(shm::CommandOp::kCreateAh, request).handle;
}

void Client::Ring(const QueuePair& qp, Instant now) {
  host->device.OnDoorbell(now, session, qp.doorbell);
}

void Client::Close(Instant now) {
  if (is_closed) return;
  is_closed = true;
  host->device.CloseSession(now, session);
}

}  // namespace verbena::simulation
