#include "softnic/device/test_world.h"

#include <cerrno>

#include "core/base/check.h"

namespace verbena::softnic::testing {

namespace qp_mask = shm::qp_mask;

// --- FakeServices -------------------------------------------------------------------------------

FakeServices::~FakeServices() {
  for (auto& [offset, block] : queues) std::free(block.memory);
}

int FakeServices::AllocateQueue(uint64_t bytes, QueueMemory* out) {
  if (allocate_error != 0) {
    if (allocations_before_error == 0) return allocate_error;
    --allocations_before_error;
  }
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(memory, 0, bytes);
  *out = {RingMemory(memory, bytes), 1, next_queue++, bytes};
  queues[out->offset] = {memory, bytes};
  return 0;
}

void FakeServices::FreeQueue(const QueueMemory& queue) {
  auto it = queues.find(queue.offset);
  VERBENA_CHECK(it != queues.end());
  std::free(it->second.memory);
  queues.erase(it);
}

int FakeServices::MakeMemory(uint64_t bytes, std::shared_ptr<NicMemory>* out) {
  struct HeapMemory final : NicMemory {
    explicit HeapMemory(uint64_t size) : block(size) {
      data = block.data();
      bytes = size;
      ++live_memories;
    }
    ~HeapMemory() override { --live_memories; }
    std::vector<std::byte> block;
  };
  if (allocate_error != 0) return allocate_error;
  *out = std::make_shared<HeapMemory>(bytes);
  return 0;
}

int FakeServices::OpenChannel(shm::Handle channel) {
  if (open_error != 0) return open_error;
  open_channels[channel];
  return 0;
}

bool FakeServices::SendChannelEvent(shm::Handle channel, const shm::ChannelEvent& event) {
  std::deque<shm::ChannelEvent>& fd = open_channels.at(channel);
  if (fd.size() >= fd_capacity) {
    ++refused_events;
    return false;
  }
  fd.push_back(event);
  return true;
}

bool FakeServices::SendAsyncEvent(const shm::AsyncEventMessage& event) {
  if (async_events.size() >= fd_capacity) return false;
  async_events.push_back(event);
  return true;
}

void FakeServices::CompleteCommand(uint32_t slot, uint32_t submitted, int error,
                                   const void* payload, uint32_t payload_bytes, uint32_t detail) {
  Completed& done = completed[slot];
  VERBENA_CHECK(done.error == -1);  // a command ends once
  done.error = error;
  const auto* bytes = static_cast<const uint8_t*>(payload);
  done.reply.assign(bytes, bytes + payload_bytes);
}

// --- TestClient ---------------------------------------------------------------------------------

TestClient::TestClient(TestWorld& test_world, uint32_t nic_index, SessionId joins)
    : world(test_world), nic(nic_index) {
  id = world.device->OpenSession(nic, "test", 100 + static_cast<int>(world.clients.size()),
                                 &services, joins);
  pd = AllocPd();
}

uint32_t TestClient::Begin(shm::CommandOp op, const void* request, uint32_t bytes) {
  shm::CommandRequest command{};
  command.op = static_cast<uint32_t>(op);
  command.payload_bytes = bytes;
  if (bytes != 0) std::memcpy(command.payload, request, bytes);
  uint32_t slot = next_slot_++;
  services.completed[slot] = {};
  world.device->OnCommand(world.now, id, slot, 1, command);
  return slot;
}

int TestClient::ExecuteRaw(shm::CommandOp op, const void* request, uint32_t bytes, void* reply,
                           uint32_t reply_bytes) {
  uint32_t slot = Begin(op, request, bytes);
  while (!IsDone(slot)) VERBENA_CHECK(world.engine->Step(*world.device, world.now));
  Completed done = services.completed[slot];
  services.completed.erase(slot);
  if (reply_bytes != 0) {
    std::memset(reply, 0, reply_bytes);
    std::copy_n(done.reply.begin(), std::min<size_t>(reply_bytes, done.reply.size()),
                static_cast<uint8_t*>(reply));
  }
  return done.error;
}

shm::Handle TestClient::AllocPd() {
  shm::HandleReply reply;
  VERBENA_CHECK(ExecuteRaw(shm::CommandOp::kAllocPd, nullptr, 0, &reply, sizeof(reply)) == 0);
  return reply.handle;
}

int TestClient::RegMr(shm::Handle of_pd, void* addr, uint64_t length, uint32_t access,
                      TestMr* out) {
  shm::RegMrRequest request{};
  request.pd = of_pd;
  request.access = access;
  request.addr = request.iova = reinterpret_cast<uint64_t>(addr);
  request.length = length;
  shm::RegMrReply reply;
  int error = Execute(shm::CommandOp::kRegMr, request, &reply);
  *out = {reply.mr, reply.lkey, reply.rkey};
  return error;
}

TestMr TestClient::MustRegMr(void* addr, uint64_t length, uint32_t access) {
  TestMr mr;
  VERBENA_CHECK(RegMr(pd, addr, length, access, &mr) == 0);
  return mr;
}

shm::Handle TestClient::CreateChannel() {
  shm::HandleReply reply;
  int error = ExecuteRaw(shm::CommandOp::kCreateChannel, nullptr, 0, &reply, sizeof(reply));
  VERBENA_CHECK(error == 0);
  return reply.handle;
}

std::byte* TestClient::MapQueue(const shm::QueuePlace& place) {
  return static_cast<std::byte*>(services.queues.at(place.offset).memory);
}

int TestClient::CreateCq(uint32_t entries, shm::Handle channel, TestCq* out, uint32_t flags) {
  shm::CreateCqRequest request{};
  request.channel = channel;
  request.entries = entries;
  request.flags = flags;
  request.cookie = 0xc0'0000 + next_slot_;
  shm::CreateCqReply reply;
  int error = Execute(shm::CommandOp::kCreateCq, request, &reply);
  if (error != 0) return error;
  out->handle = reply.cq;
  out->ring = CqConsumer(RingMemory(MapQueue(reply.place), reply.place.bytes), reply.place.entries);
  return 0;
}

TestCq TestClient::MustCreateCq(uint32_t entries, shm::Handle channel) {
  TestCq cq;
  VERBENA_CHECK(CreateCq(entries, channel, &cq) == 0);
  return cq;
}

int TestClient::CreateSrq(uint32_t max_wr, uint32_t max_sge, TestSrq* out, uint32_t flags) {
  shm::CreateSrqRequest request{};
  request.pd = pd;
  request.max_wr = max_wr;
  request.max_sge = max_sge;
  request.flags = flags;
  int error = Execute(shm::CommandOp::kCreateSrq, request, &out->reply);
  if (error != 0) return error;
  out->handle = out->reply.srq;
  const shm::QueuePlace& place = out->reply.place;
  out->ring = WorkQueueProducer(RingMemory(MapQueue(place), place.bytes), place.entries,
                                place.stride_bytes, place.entries);
  return 0;
}

shm::CreateQpRequest TestClient::QpRequest(Service service, shm::Handle cq) const {
  shm::CreateQpRequest request{};
  request.pd = pd;
  request.send_cq = request.recv_cq = cq;
  request.service = static_cast<uint32_t>(service);
  request.max_send_wr = request.max_recv_wr = 16;
  request.max_send_sge = request.max_recv_sge = 4;
  request.max_inline_bytes = 64;
  request.cookie = 0xabc;
  return request;
}

int TestClient::CreateQp(const shm::CreateQpRequest& request, TestQp* out) {
  shm::CreateQpReply reply;
  int error = Execute(shm::CommandOp::kCreateQp, request, &reply);
  if (error != 0) return error;
  auto producer = [this](const shm::QueuePlace& place) {
    if (place.bytes == 0) return WorkQueueProducer();
    return WorkQueueProducer(RingMemory(MapQueue(place), place.bytes), place.entries,
                             place.stride_bytes, place.entries);
  };
  *out = {reply.qp, Qpn{reply.qpn}, reply, producer(reply.sq), producer(reply.rq)};
  return 0;
}

TestQp TestClient::MustCreateQp(Service service, const TestCq& cq) {
  TestQp qp;
  VERBENA_CHECK(CreateQp(QpRequest(service, cq.handle), &qp) == 0);
  return qp;
}

int TestClient::Modify(const TestQp& qp, const shm::QpAttr& attr, uint32_t mask) {
  shm::ModifyQpRequest request{qp.handle, mask, attr};
  shm::ModifyQpReply reply;
  return Execute(shm::CommandOp::kModifyQp, request, &reply);
}

int TestClient::ToReset(TestQp& qp) {
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kReset);
  int error = Modify(qp, attr, qp_mask::kState);
  if (error != 0) return error;
  qp.sq.Reset();
  if (qp.reply.rq.bytes != 0) qp.rq.Reset();
  return 0;
}

int TestClient::ToInit(const TestQp& qp, Service service) {
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kInit);
  attr.port_num = 1;
  attr.qkey = 0x1111;
  attr.qp_access_flags =
      access::kLocalWrite | access::kRemoteWrite |
      (service == Service::kRc ? access::kRemoteRead | access::kRemoteAtomic | access::kFlushGlobal
                               : 0);
  uint32_t mask = qp_mask::kState | qp_mask::kPkeyIndex | qp_mask::kPort |
                  (service == Service::kUd ? qp_mask::kQkey : qp_mask::kAccessFlags);
  return Modify(qp, attr, mask);
}

int TestClient::ToRtr(const TestQp& qp, Service service, const Gid& dgid, Qpn remote,
                      const PathAttr& path) {
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kRtr);
  uint32_t mask = qp_mask::kState;
  if (service != Service::kUd) {
    mask |= qp_mask::kAv | qp_mask::kPathMtu | qp_mask::kDestQpn | qp_mask::kRqPsn;
    std::memcpy(attr.ah_attr.dgid, dgid.raw.data(), 16);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.sgid_index = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.hop_limit = 64;
    attr.path_mtu = path.path_mtu;
    attr.dest_qp_num = remote.value;
    attr.rq_psn = path.peer_psn;
  }
  if (service == Service::kRc) {
    mask |= qp_mask::kMaxDestRdAtomic | qp_mask::kMinRnrTimer;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = path.min_rnr_timer;
  }
  return Modify(qp, attr, mask);
}

int TestClient::ToRts(const TestQp& qp, Service service, const PathAttr& path) {
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kRts);
  attr.sq_psn = path.own_psn;
  uint32_t mask = qp_mask::kState | qp_mask::kSqPsn;
  if (service == Service::kRc) {
    mask |= qp_mask::kTimeout | qp_mask::kRetryCnt | qp_mask::kRnrRetry | qp_mask::kMaxQpRdAtomic;
    attr.timeout = 14;
    attr.retry_cnt = 3;
    attr.rnr_retry = path.rnr_retry;
    attr.max_rd_atomic = 4;
  }
  return Modify(qp, attr, mask);
}

int TestClient::ToError(const TestQp& qp) {
  shm::QpAttr attr{};
  attr.qp_state = static_cast<uint32_t>(QpState::kErr);
  return Modify(qp, attr, qp_mask::kState);
}

QpState TestClient::StateOf(const TestQp& qp) {
  shm::HandleRequest request{qp.handle, 0};
  shm::QueryQpReply reply;
  VERBENA_CHECK(Execute(shm::CommandOp::kQueryQp, request, &reply) == 0);
  return static_cast<QpState>(reply.attr.qp_state);
}

shm::Handle TestClient::CreateAh(const Gid& dgid) {
  shm::CreateAhRequest request{};
  request.pd = pd;
  std::memcpy(request.attr.dgid, dgid.raw.data(), 16);
  request.attr.is_global = 1;
  request.attr.sgid_index = 1;
  request.attr.port_num = 1;
  shm::HandleReply reply;
  VERBENA_CHECK(Execute(shm::CommandOp::kCreateAh, request, &reply) == 0);
  return reply.handle;
}

void TestClient::Ring(const TestQp& qp) {
  world.device->OnDoorbell(world.now, id, qp.reply.sq.doorbell);
}

void TestClient::Post(TestQp& qp, const shm::SendWqe& wqe, const std::vector<shm::Sge>& sges) {
  auto* entry = static_cast<std::byte*>(qp.sq.Reserve());
  VERBENA_CHECK(entry != nullptr);
  shm::SendWqe head = wqe;
  head.num_sge = static_cast<uint8_t>(sges.size());
  std::byte* body = shm::PlaceSendBody(&head, sges.size() * sizeof(shm::Sge), entry + sizeof(head));
  std::copy(sges.begin(), sges.end(), reinterpret_cast<shm::Sge*>(body));
  std::memcpy(entry, &head, sizeof(head));
  qp.sq.Publish();
  Ring(qp);
}

void TestClient::PostInline(TestQp& qp, shm::SendWqe wqe, const std::string& bytes) {
  auto* entry = static_cast<std::byte*>(qp.sq.Reserve());
  VERBENA_CHECK(entry != nullptr);
  wqe.flags |= shm::kSendInline;
  wqe.inline_bytes = static_cast<uint32_t>(bytes.size());
  std::byte* body = shm::PlaceSendBody(&wqe, bytes.size(), entry + sizeof(wqe));
  std::memcpy(body, bytes.data(), bytes.size());
  std::memcpy(entry, &wqe, sizeof(wqe));
  qp.sq.Publish();
  Ring(qp);
}

void TestClient::Fill(WorkQueueProducer& ring, uint64_t wr_id, const std::vector<shm::Sge>& sges) {
  auto* entry = static_cast<std::byte*>(ring.Reserve());
  VERBENA_CHECK(entry != nullptr);
  shm::RecvWqe head{wr_id, static_cast<uint32_t>(sges.size()), 0};
  std::memcpy(entry, &head, sizeof(head));
  std::copy(sges.begin(), sges.end(), reinterpret_cast<shm::Sge*>(entry + sizeof(head)));
  ring.Publish();
}

void TestClient::PostRecv(TestQp& qp, uint64_t wr_id, const std::vector<shm::Sge>& sges) {
  Fill(qp.rq, wr_id, sges);
  if (qp.rq.WantsDoorbell()) Ring(qp);
}

void TestClient::PostSrqRecv(TestSrq& srq, uint64_t wr_id, const std::vector<shm::Sge>& sges) {
  Fill(srq.ring, wr_id, sges);
}

std::optional<Wc> TestClient::Poll(TestCq& cq) {
  const shm::Cqe* cqe = cq.ring.Peek();
  if (cqe == nullptr) return std::nullopt;
  Wc wc;
  wc.wr_id = cqe->wr_id;
  wc.status = static_cast<WcStatus>(cqe->status);
  wc.opcode = static_cast<shm::WcOpcode>(cqe->opcode);
  wc.byte_len = cqe->byte_len;
  wc.qpn = cqe->qpn;
  wc.src_qpn = cqe->src_qpn;
  wc.imm = cqe->imm_or_rkey;
  wc.vendor_err = cqe->vendor_err;
  wc.qp_handle = cqe->qp_handle;
  wc.place = cqe->place;
  wc.flags = cqe->wc_flags;
  wc.recv_offset = cqe->recv_offset_bytes;
  wc.is_send = cqe->is_send != 0;
  wc.timestamp_ns = cqe->timestamp_ns;
  cq.ring.Consume();
  cq.ring.Publish();
  return wc;
}

std::vector<Wc> TestClient::PollAll(TestCq& cq) {
  std::vector<Wc> all;
  while (std::optional<Wc> wc = Poll(cq)) all.push_back(*wc);
  return all;
}

std::vector<EventType> TestClient::TakeAsyncEvents() {
  std::vector<EventType> events;
  for (const shm::AsyncEventMessage& message : services.async_events) {
    events.push_back(static_cast<EventType>(message.event));
  }
  services.async_events.clear();
  return events;
}

// --- TestWorld ----------------------------------------------------------------------------------

NicConfig TestWorld::ConfigOf(uint32_t nic) {
  NicConfig config;
  config.name = "verbena" + std::to_string(nic);
  config.ipv4 = 0x7f00'0001 + nic;
  const uint8_t mac[6] = {0x02, 0x56, 0x42, 0, 0, static_cast<uint8_t>(nic + 1)};
  std::memcpy(config.mac, mac, sizeof(mac));
  return config;
}

TestWorld::TestWorld(uint32_t nics, DeviceLimits limits, TransportFactory factory,
                     SteppedDma* other_dma)
    : engine(other_dma != nullptr ? other_dma : &dma) {
  DeviceConfig config;
  config.limits = limits;
  config.completion_clock = [this] { return now + kIntoTurn; };
  for (uint32_t i = 0; i < nics; ++i) config.nics.push_back(ConfigOf(i));
  device = std::make_unique<DeviceCore>(config, engine, std::move(factory));
}

TestWorld::~TestWorld() {
  dma.is_held = false;
  dma.held_session = 0;
  for (auto& client : clients) device->CloseSession(now, client->id);
  Settle();
  for (auto& client : clients) VERBENA_CHECK(device->SessionIsGone(client->id));
  VERBENA_CHECK(dma.regions.empty());
  for (auto& client : clients) VERBENA_CHECK(client->services.queues.empty());
}

void TestWorld::Settle() {
  for (bool moved = true; moved;) {
    moved = device->Run(now, 64);
    while (engine->Step(*device, now)) moved = true;
  }
}

bool TestWorld::AdvanceToTimer() {
  Instant next = device->PollTimeout();
  if (next.IsNever()) return false;
  now = std::max(now, next);
  device->OnTimeout(now);
  return true;
}

TestClient& TestWorld::AddClient(uint32_t nic, SessionId joins) {
  clients.push_back(std::make_unique<TestClient>(*this, nic, joins));
  return *clients.back();
}

void TestWorld::Close(TestClient& client) { device->CloseSession(now, client.id); }

void Connect(TestClient& a, TestQp& qp_a, TestClient& b, TestQp& qp_b, Service service) {
  VERBENA_CHECK(a.ToInit(qp_a, service) == 0);
  VERBENA_CHECK(b.ToInit(qp_b, service) == 0);
  VERBENA_CHECK(a.ToRtr(qp_a, service, TestWorld::GidOf(b.nic), qp_b.qpn) == 0);
  VERBENA_CHECK(b.ToRtr(qp_b, service, TestWorld::GidOf(a.nic), qp_a.qpn) == 0);
  VERBENA_CHECK(a.ToRts(qp_a, service) == 0);
  VERBENA_CHECK(b.ToRts(qp_b, service) == 0);
}

shm::SendWqe MakeWqe(shm::WrOpcode opcode, uint64_t wr_id, uint8_t flags) {
  shm::SendWqe wqe{};
  wqe.wr_id = wr_id;
  wqe.opcode = static_cast<uint8_t>(opcode);
  wqe.flags = flags;
  return wqe;
}

shm::Sge SgeOf(const void* addr, uint32_t length, uint32_t lkey) {
  return {reinterpret_cast<uint64_t>(addr), length, lkey};
}

}  // namespace verbena::softnic::testing
