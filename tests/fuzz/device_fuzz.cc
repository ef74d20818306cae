// A hostile client beside honest ones: the input is a script of commands, WQE bytes, ring indices
// and doorbells. Whatever it does, nothing faults, the honest ones' traffic completes, and their
// memory holds what it would without the hostile one.
//
//   alice, bob   honest, connected to each other by RC; bob's vault is open to that connection
//   mallory      hostile, on alice's NIC; bob has a second QP connected to her and a UD QP that
//                listens: to these she may send, and write into the window he opened to her. His
//                other memory is none of hers, though she knows all addresses and keys.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "softnic/device/test_world.h"
#include "tests/fuzz/commands.h"
#include "tests/fuzz/input.h"

namespace verbena::fuzz {
namespace {

using namespace softnic::testing;  // NOLINT: the target is about nothing else

constexpr uint32_t kRemote =
    access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic;
constexpr uint32_t kStepsMax = 200;
constexpr uint32_t kTimersMax = 20;
constexpr uint32_t kDeparturesMax = 4;
constexpr size_t kDictionaryMax = 64;
constexpr uint32_t kPieceBytes = 64;
constexpr uint32_t kFirstSlot = 1'000'000;  // beyond those of TestClient's own commands

// Small, so that few commands reach them.
softnic::DeviceLimits SmallLimits() {
  softnic::DeviceLimits limits;
  limits.max_qp = 24;
  limits.many_qps = 1;
  limits.max_qp_wr = 32;
  limits.max_sge = limits.max_sge_rd = 8;
  limits.max_inline_bytes = 128;
  limits.max_cq = 24;
  limits.max_cqe = 256;
  limits.max_mr = 24;
  limits.max_pd = 16;
  limits.max_ah = 16;
  limits.max_srq = 8;
  limits.max_srq_wr = 32;
  limits.max_srq_sge = 4;
  limits.max_mcast_grp = 4;
  limits.max_mcast_qp_attach = 4;
  limits.max_message_bytes = 1u << 16;
  return limits;
}

class Stage {
 public:
  Stage()
      : world_(2, SmallLimits()),
        alice_(world_.AddClient(0)),
        bob_(world_.AddClient(1)),
        alice_cq_(alice_.MustCreateCq(64)),
        bob_cq_(bob_.MustCreateCq(64)),
        alice_qp_(alice_.MustCreateQp(Service::kRc, alice_cq_)),
        bob_qp_(bob_.MustCreateQp(Service::kRc, bob_cq_)) {
    Connect(alice_, alice_qp_, bob_, bob_qp_, Service::kRc);
    world_.dma.may_add = [this](softnic::SessionId session, const softnic::RegionSpec& spec) {
      return mallory_ == nullptr || session != mallory_->id || IsHers(spec);
    };
    vault_mr_ = bob_.MustRegMr(vault_.data(), vault_.size(), kRemote);
    private_mr_ = bob_.MustRegMr(private_.data(), private_.size(), access::kLocalWrite);
    source_mr_ = alice_.MustRegMr(source_.data(), source_.size(), kRemote);
    private_.fill(0x50);
    private_model_ = private_;
    source_.fill(0x51);
    guarded_.fill(0x52);  // the window lies amid memory that was not opened
    VERBENA_CHECK(bob_.RegMr(open_pd_, guarded_.data() + 256, 256, kRemote, &window_mr_) == 0);
    VERBENA_CHECK(bob_.RegMr(open_pd_, mailbox_.data(), mailbox_.size(), access::kLocalWrite,
                             &mailbox_mr_) == 0);
    open_cq_ = bob_.MustCreateCq(256);
    shm::CreateQpRequest request = bob_.QpRequest(Service::kRc, open_cq_.handle);
    request.pd = open_pd_;
    VERBENA_CHECK(bob_.CreateQp(request, &open_qp_) == 0);
    request.service = static_cast<uint32_t>(Service::kUd);
    VERBENA_CHECK(bob_.CreateQp(request, &open_ud_) == 0);
    VERBENA_CHECK(bob_.ToInit(open_ud_, Service::kUd) == 0);
    VERBENA_CHECK(bob_.ToRtr(open_ud_, Service::kUd, {}, {}) == 0);
    Arrive();
  }

  void Play(Input input) {
    for (uint32_t step = 0; step < kStepsMax && input.left() != 0; ++step) Step(input);
    ExpectHonestTrafficWorks();
    ExpectMemoryUntouched();
  }

 private:
  // --- mallory ----------------------------------------------------------------------------------

  uint64_t HerMemory(Input& input) const {
    const uint64_t begin = (reinterpret_cast<uint64_t>(arena_.data()) + 63) / 64 * 64;
    return begin + 64u * (input.Take<uint8_t>() % 32);
  }

  // A new session of hers, with one connection to bob.
  void Arrive() {
    mallory_ = &world_.AddClient(0);
    words_.clear();
    qps_.clear();
    const TestMr mr = arena_mr_ =
        mallory_->MustRegMr(arena_.data(), arena_.size(), kRemote | access::kMwBind);
    TestCq cq = mallory_->MustCreateCq(16);
    for (Service service : {Service::kRc, Service::kUc, Service::kUd, Service::kRc}) {
      qps_.push_back(mallory_->MustCreateQp(service, cq));
    }
    ConnectToBob(0);
    const shm::Handle ah = mallory_->CreateAh(TestWorld::GidOf(1));
    words_ = {0,
              1,
              ~0u,
              mr.lkey,
              mr.rkey,
              mr.handle,
              cq.handle,
              mallory_->pd,
              ah,
              window_mr_.rkey,
              vault_mr_.rkey,
              vault_mr_.lkey,
              private_mr_.lkey,
              private_mr_.rkey,
              source_mr_.rkey,
              mailbox_mr_.lkey,
              bob_qp_.qpn.value,
              alice_qp_.qpn.value,
              open_qp_.qpn.value,
              open_ud_.qpn.value,
              0x1111,  // the UD QPs' Q_Key
              64,
              4'096};
    for (const TestQp& qp : qps_) words_.insert(words_.end(), {qp.handle, qp.qpn.value});
  }

  void ConnectToBob(size_t qp) {
    VERBENA_CHECK(bob_.ToReset(open_qp_) == 0);
    ResetHers(qps_[qp]);
    bob_.ToInit(open_qp_, Service::kRc);
    bob_.ToRtr(open_qp_, Service::kRc, TestWorld::GidOf(0), qps_[qp].qpn);
    bob_.ToRts(open_qp_, Service::kRc);
    if (mallory_->ToInit(qps_[qp], Service::kRc) != 0) return;
    if (mallory_->ToRtr(qps_[qp], Service::kRc, TestWorld::GidOf(1), open_qp_.qpn) != 0) return;
    mallory_->ToRts(qps_[qp], Service::kRc);
  }

  // Fails if she has destroyed it.
  void ResetHers(const TestQp& qp) {
    shm::QpAttr attr{};
    attr.qp_state = static_cast<uint32_t>(QpState::kReset);
    if (mallory_->Modify(qp, attr, shm::qp_mask::kState) != 0) return;
    const uint32_t zero = 0;
    for (const shm::QueuePlace& place : {qp.reply.sq, qp.reply.rq}) {
      if (FakeServices::Block* queue = Queue(place)) Poke(*queue, 0, &zero, sizeof(zero));
    }
  }

  // A number that means something, or any.
  uint32_t Word(Input& input) {
    auto choice = input.Take<uint8_t>();
    if (choice < 0xc0) return words_[choice % words_.size()];
    if (choice < 0xf0) return choice - 0xc0u;
    return input.Take<uint32_t>();
  }
  uint64_t Address(Input& input) {
    auto choice = input.Take<uint8_t>();
    auto offset = input.Take<uint8_t>();
    switch (choice % 8) {
      case 0:
        return reinterpret_cast<uint64_t>(vault_.data()) + offset;
      case 1:
        return reinterpret_cast<uint64_t>(private_.data()) + offset;
      case 2:
        return reinterpret_cast<uint64_t>(guarded_.data()) + 128 + 2u * offset;
      case 3:
        return input.Take<uint64_t>();
      case 4:
        return reinterpret_cast<uint64_t>(guarded_.data()) + 256 + offset;
      default:
        return reinterpret_cast<uint64_t>(arena_.data()) + 8u * offset;
    }
  }

  // Memory by its address and the keys that belong to it: hers, what was opened to her, and what is
  // none of hers.
  struct Known {
    const uint8_t* bytes;
    TestMr mr;
  };
  Known Aim(Input& input) {
    const Known all[] = {{arena_.data(), arena_mr_},   {guarded_.data() + 256, window_mr_},
                         {vault_.data(), vault_mr_},   {private_.data(), private_mr_},
                         {source_.data(), source_mr_}, {mailbox_.data(), mailbox_mr_}};
    return all[input.Take<uint8_t>() % std::size(all)];
  }

  void Learn(const std::vector<uint8_t>& reply) {
    for (size_t at = 0; at + 4 <= std::min<size_t>(reply.size(), 8); at += 4) {
      uint32_t word;
      std::memcpy(&word, reply.data() + at, 4);
      if (words_.size() < kDictionaryMax) {
        words_.push_back(word);
      } else {
        words_[word % kDictionaryMax] = word;
      }
    }
  }

  // The DMA engine of the tests reaches all of this process; a real one only the client's.
  bool IsHers(const softnic::RegionSpec& spec) const {
    auto begin = reinterpret_cast<uint64_t>(arena_.data());
    return spec.addr >= begin && spec.addr - begin <= arena_.size() &&
           spec.length <= arena_.size() - (spec.addr - begin);
  }

  void Submit(const shm::CommandRequest& command) {
    uint32_t slot = next_slot_++;
    mallory_->services.completed[slot] = {};
    world_.device->OnCommand(world_.now, mallory_->id, slot, 1, command);
    if (mallory_->IsDone(slot) && mallory_->services.completed[slot].error == 0) {
      const std::vector<uint8_t>& reply = mallory_->services.completed[slot].reply;
      Learn(reply);
      if (command.op == static_cast<uint32_t>(CommandOp::kCreateQp)) LearnQp(reply);
    }
  }

  void LearnQp(const std::vector<uint8_t>& bytes) {
    TestQp qp;
    std::memcpy(&qp.reply, bytes.data(), std::min(bytes.size(), sizeof(qp.reply)));
    qp.handle = qp.reply.qp;
    qp.qpn = Qpn{qp.reply.qpn};
    if (qps_.size() < 8) qps_.push_back(qp);
  }

  // Payload: words of the dictionary at the places the input names, amid its bytes.
  void Command(Input& input) {
    shm::CommandRequest command{};
    command.op = input.Take<uint8_t>() % (static_cast<uint32_t>(CommandOp::kCount) + 1);
    command.payload_bytes = PayloadBytes(command.op);
    auto style = input.Take<uint8_t>();
    if (style % 16 == 15) command.payload_bytes = input.Take<uint32_t>();
    uint32_t words = std::min<uint32_t>(command.payload_bytes, sizeof(command.payload)) / 4;
    if (style % 2 == 0) {
      for (uint32_t i = 0; i < words; ++i) Put(command, 4 * i, Word(input));
    } else {
      input.TakeBytes(command.payload, std::min(4 * words, kPieceBytes));
    }
    if (const uint32_t at = RangeAt(command.op); at != kNoRange) {
      uint64_t address = Address(input);
      std::memcpy(command.payload + at + offsetof(shm::RegMrRequest, addr), &address, 8);
      uint64_t length = input.Take<uint16_t>();
      std::memcpy(command.payload + at + offsetof(shm::RegMrRequest, length), &length, 8);
    }
    for (size_t at : EntryMemoryFields(static_cast<CommandOp>(command.op))) {
      // Her own memory, mostly, or the arena.
      const uint64_t address = input.Take<uint8_t>() % 2 == 0 ? 0 : Address(input) & ~63ull;
      std::memcpy(command.payload + at, &address, sizeof(address));
    }
    Submit(command);
  }
  // Where commands name memory for a queue's entries.
  static std::vector<size_t> EntryMemoryFields(CommandOp op) {
    switch (op) {
      case CommandOp::kCreateCq:
        return {offsetof(shm::CreateCqRequest, memory)};
      case CommandOp::kResizeCq:
        return {offsetof(shm::ResizeCqRequest, memory)};
      case CommandOp::kCreateSrq:
        return {offsetof(shm::CreateSrqRequest, memory)};
      case CommandOp::kModifySrq:
        return {offsetof(shm::ModifySrqRequest, memory)};
      case CommandOp::kCreateQp:
        return {offsetof(shm::CreateQpRequest, sq_memory),
                offsetof(shm::CreateQpRequest, rq_memory)};
      default:
        return {};
    }
  }
  static void Put(shm::CommandRequest& command, size_t at, uint32_t word) {
    std::memcpy(command.payload + at, &word, sizeof(word));
  }
  // A command that is nearly right: creates what the others need, and moves QPs on.
  void PlausibleCommand(Input& input) {
    shm::CommandRequest command{};
    const TestQp& qp = qps_[input.Take<uint8_t>() % qps_.size()];
    switch (input.Take<uint8_t>() % 4) {
      case 0: {
        command.op = static_cast<uint32_t>(CommandOp::kCreateQp);
        shm::CreateQpRequest request =
            mallory_->QpRequest(static_cast<Service>(input.Take<uint8_t>() % 4), Word(input));
        request.pd = Word(input);
        request.recv_cq = Word(input);
        request.srq = Word(input);
        if (input.Take<uint8_t>() % 2 == 0) request.sq_memory = HerMemory(input);
        if (input.Take<uint8_t>() % 2 == 0) request.rq_memory = HerMemory(input);
        Fill(command, request);
        break;
      }
      case 1: {
        command.op = static_cast<uint32_t>(CommandOp::kModifyQp);
        shm::ModifyQpRequest request{qp.handle, input.Take<uint32_t>(), {}};
        request.attr.qp_state = input.Take<uint8_t>() % 8;
        request.attr.dest_qp_num = Word(input);
        request.attr.qp_access_flags = input.Take<uint8_t>();
        request.attr.path_mtu = input.Take<uint8_t>() % 8;
        request.attr.port_num = request.attr.ah_attr.port_num = 1;
        request.attr.ah_attr.is_global = request.attr.ah_attr.sgid_index = 1;
        Gid gid = TestWorld::GidOf(input.Take<uint8_t>() % 3);
        std::memcpy(request.attr.ah_attr.dgid, gid.raw.data(), 16);
        request.attr.timeout = request.attr.rnr_retry = input.Take<uint8_t>() % 32;
        request.has_peer_psn = request.peer_psn = Word(input);
        Fill(command, request);
        break;
      }
      case 2: {
        // One step of the ladder, with all that step wants.
        Gid gid = TestWorld::GidOf(input.Take<uint8_t>() % 2);
        Climb(qp, static_cast<Service>(input.Take<uint8_t>() % 3), gid, Qpn{Word(input)});
        return;
      }
      default: {
        command.op = static_cast<uint32_t>(CommandOp::kCreateSrq);
        shm::CreateSrqRequest request{Word(input), input.Take<uint8_t>(), 2, Word(input), 0, 0};
        if (input.Take<uint8_t>() % 2 == 0) request.memory = HerMemory(input);
        request.flags = input.Take<uint8_t>() % 4;
        Fill(command, request);
        break;
      }
    }
    Submit(command);
  }
  void Climb(const TestQp& qp, Service service, const Gid& gid, Qpn remote) {
    world_.dma.is_held = false;  // a command may wait for it
    if (mallory_->ToInit(qp, service) != 0) return;
    if (mallory_->ToRtr(qp, service, gid, remote) != 0) return;
    mallory_->ToRts(qp, service);
  }
  template <typename Request>
  static void Fill(shm::CommandRequest& command, const Request& request) {
    command.payload_bytes = sizeof(request);
    std::memcpy(command.payload, &request, sizeof(request));
  }

  // Memory of one of her queues; nullptr if that queue is gone.
  FakeServices::Block* Queue(const shm::QueuePlace& place) {
    auto it = mallory_->services.queues.find(place.offset);
    return place.bytes == 0 || it == mallory_->services.queues.end() ? nullptr : &it->second;
  }
  FakeServices::Block* AnyQueue(Input& input) {
    auto& queues = mallory_->services.queues;
    if (queues.empty()) return nullptr;
    return &std::next(queues.begin(), input.Take<uint8_t>() % queues.size())->second;
  }
  static void Poke(FakeServices::Block& queue, uint64_t at, const void* bytes, size_t count) {
    if (at >= queue.bytes) return;
    std::memcpy(static_cast<std::byte*>(queue.memory) + at, bytes,
                std::min<uint64_t>(count, queue.bytes - at));
  }

  // A WQE that may be right, written where the device will look next; published, rung.
  void Post(Input& input) {
    TestQp& qp = qps_[input.Take<uint8_t>() % qps_.size()];
    auto style = input.Take<uint8_t>();
    bool is_send = style % 4 != 0;
    const shm::QueuePlace& place = is_send ? qp.reply.sq : qp.reply.rq;
    FakeServices::Block* queue = Queue(place);
    if (queue == nullptr || place.entries == 0) return;
    uint32_t producer;
    std::memcpy(&producer, queue->memory, sizeof(producer));
    uint64_t at = shm::kWorkQueueHeadBytes +
                  static_cast<uint64_t>(producer & (place.entries - 1)) * place.stride_bytes;
    std::array<shm::Sge, 3> sges;
    for (shm::Sge& sge : sges) {
      auto aim = input.Take<uint8_t>();
      sge = SgeOf(arena_.data(), aim, arena_mr_.lkey);
      if (aim % 4 == 1) sge = {Address(input), aim, Word(input)};
      if (aim % 4 == 2) {
        const Known known = Aim(input);
        sge = SgeOf(known.bytes, 16, known.mr.lkey);
      }
      if (style % 8 == 7) sge.length = input.Take<uint32_t>();
    }
    uint32_t head_bytes;
    if (is_send) {
      shm::SendWqe wqe{};
      wqe.wr_id = producer;
      wqe.opcode = input.Take<uint8_t>() % (style >= 0xc0 ? 17 : 8);
      wqe.flags = input.Take<uint8_t>();
      if (style / 32 % 4 != 0) wqe.flags &= ~shm::kSendInline;
      wqe.num_sge = input.Take<uint8_t>() % 4;
      wqe.imm_or_rkey = Word(input);
      if (style / 4 % 4 == 0) {
        wqe.remote_addr = Address(input);
        wqe.rkey = Word(input);
      } else {
        const Known known = Aim(input);
        wqe.remote_addr = reinterpret_cast<uint64_t>(known.bytes) + 16;
        wqe.rkey = known.mr.rkey;
      }
      wqe.inline_bytes = input.Take<uint8_t>();
      for (uint32_t* word : {&wqe.ah, &wqe.remote_qpn, &wqe.remote_qkey}) *word = Word(input);
      wqe.atomic = {Word(input), 0xeeee};
      const uint32_t bytes = wqe.flags & shm::kSendInline ? wqe.inline_bytes : wqe.num_sge * 16u;
      if (auto* body = shm::PlaceSendBody(&wqe, bytes, nullptr)) std::memcpy(body, sges.data(), 16);
      if (wqe.opcode == 8) wqe.bind = {24, Word(input), input.Take<uint8_t>()};  // BIND_MW
      if (style >= 0xe0) input.TakeBytes(&wqe, sizeof(wqe));
      Poke(*queue, at, &wqe, head_bytes = sizeof(wqe));
    } else {
      shm::RecvWqe wqe{producer, input.Take<uint8_t>() % 4u, 0};
      if (style >= 0xe0) wqe.num_sge = input.Take<uint32_t>();
      Poke(*queue, at, &wqe, head_bytes = sizeof(wqe));
    }
    Poke(*queue, at + head_bytes, sges.data(), sizeof(sges));
    ++producer;
    Poke(*queue, 0, &producer, sizeof(producer));
    if (style % 32 != 31) world_.device->OnDoorbell(world_.now, mallory_->id, place.doorbell);
  }

  void Scribble(Input& input) {
    FakeServices::Block* queue = AnyQueue(input);
    if (queue == nullptr) return;
    uint64_t at = input.Take<uint16_t>();
    std::array<uint8_t, kPieceBytes> piece;
    size_t count = input.TakeBytes(piece.data(), input.Take<uint8_t>() % kPieceBytes);
    Poke(*queue, at % queue->bytes, piece.data(), count);
  }

  void LieAboutAnIndex(Input& input) {
    FakeServices::Block* queue = AnyQueue(input);
    if (queue == nullptr) return;
    // Words of the queue's head: producer, CPU hint or arm, and 64 bytes on the consumer's.
    const uint64_t places[] = {0, 4, 64, 68};
    uint64_t at = places[input.Take<uint8_t>() % 4];
    uint32_t word;
    if (at + sizeof(word) > queue->bytes) return;  // a counter's page has the first line only
    std::memcpy(&word, static_cast<std::byte*>(queue->memory) + at, sizeof(word));
    word += static_cast<uint32_t>(static_cast<int32_t>(input.Take<int8_t>()));
    if (input.Take<uint8_t>() % 4 == 0) word = input.Take<uint32_t>();
    Poke(*queue, at, &word, sizeof(word));
  }

  void Ring(Input& input) {
    uint32_t doorbell = input.Take<uint8_t>() % 2 == 0
                            ? qps_[input.Take<uint8_t>() % qps_.size()].reply.sq.doorbell
                            : Word(input);
    world_.device->OnDoorbell(world_.now, mallory_->id, doorbell);
  }

  void Leave() {
    if (++departures_ > kDeparturesMax) return;
    world_.dma.is_held = false;
    world_.Close(*mallory_);
    world_.Settle();
    VERBENA_CHECK(world_.device->SessionIsGone(mallory_->id));
    VERBENA_CHECK(mallory_->services.queues.empty());
    Arrive();
  }

  // --- bob and alice ----------------------------------------------------------------------------

  void OfferReceive(TestQp& qp) {
    if (qp.rq.Reserve() == nullptr) return;
    qp.rq.Unreserve(1);
    bob_.PostRecv(qp, 7, {SgeOf(mailbox_.data(), 128, mailbox_mr_.lkey)});
  }
  // Bob answers mallory: her receives and her memory are the destination.
  void SendToMallory(Input& input) {
    if (open_qp_.sq.Reserve() == nullptr) return;
    open_qp_.sq.Unreserve(1);
    shm::SendWqe wqe = MakeWqe(static_cast<shm::WrOpcode>(input.Take<uint8_t>() % 7), 8);
    wqe.remote_addr = reinterpret_cast<uint64_t>(arena_.data());
    wqe.rkey = Word(input);
    bob_.Post(open_qp_, wqe, {SgeOf(mailbox_.data() + 128, 8, mailbox_mr_.lkey)});
  }

  void ExpectHonestTrafficWorks() {
    world_.dma.is_held = false;
    world_.Settle();
    bob_.PollAll(open_cq_);
    ++honest_rounds_;
    uint64_t at = 16 * (honest_rounds_ % (vault_.size() / 16 - 1)) + 16;
    std::memcpy(source_.data(), &honest_rounds_, sizeof(honest_rounds_));
    shm::SendWqe write = MakeWqe(shm::WrOpcode::kRdmaWrite, 1);
    write.remote_addr = reinterpret_cast<uint64_t>(vault_.data()) + at;
    write.rkey = vault_mr_.rkey;
    shm::SendWqe add = MakeWqe(shm::WrOpcode::kAtomicFetchAndAdd, 2);
    add.remote_addr = reinterpret_cast<uint64_t>(vault_.data());
    add.rkey = vault_mr_.rkey;
    add.atomic.compare_add = 1;
    bob_.PostRecv(bob_qp_, 9, {SgeOf(private_.data(), 8, private_mr_.lkey)});
    alice_.Post(alice_qp_, write, {SgeOf(source_.data(), 8, source_mr_.lkey)});
    alice_.Post(alice_qp_, add, {SgeOf(source_.data() + 8, 8, source_mr_.lkey)});
    alice_.Post(alice_qp_, MakeWqe(shm::WrOpcode::kSend, 3),
                {SgeOf(source_.data(), 8, source_mr_.lkey)});
    world_.Settle();
    std::vector<Wc> sent = alice_.PollAll(alice_cq_), received = bob_.PollAll(bob_cq_);
    VERBENA_CHECK(sent.size() == 3 && received.size() == 1);
    for (const Wc& wc : sent) VERBENA_CHECK(wc.status == WcStatus::kSuccess);
    VERBENA_CHECK(received[0].status == WcStatus::kSuccess && received[0].byte_len == 8);
    std::memcpy(vault_model_.data() + at, &honest_rounds_, 8);
    std::memcpy(vault_model_.data(), &honest_rounds_, 8);  // one was added in each round
    std::memcpy(private_model_.data(), &honest_rounds_, 8);
    uint64_t before = honest_rounds_ - 1;
    VERBENA_CHECK(std::memcmp(source_.data() + 8, &before, 8) == 0);
    VERBENA_CHECK(alice_.TakeAsyncEvents().empty());
  }

  void ExpectMemoryUntouched() {
    VERBENA_CHECK(vault_ == vault_model_);
    VERBENA_CHECK(private_ == private_model_);
    VERBENA_CHECK(std::count(guarded_.begin(), guarded_.begin() + 256, 0x52) == 256);
    VERBENA_CHECK(std::count(guarded_.end() - 256, guarded_.end(), 0x52) == 256);
    VERBENA_CHECK(std::count(source_.begin() + 16, source_.end(), 0x51) == 48);
  }

  // --- the script -------------------------------------------------------------------------------

  void Step(Input& input) {
    switch (input.Take<uint8_t>() % 16) {
      case 0:
        return Command(input);
      case 1:
        return PlausibleCommand(input);
      case 2:
        return Scribble(input);
      case 3:
        return LieAboutAnIndex(input);
      case 4:
        return Ring(input);
      case 5:
        for (uint32_t i = input.Take<uint8_t>() % kTimersMax; i != 0; --i) world_.AdvanceToTimer();
        return;
      case 6:
        ExpectHonestTrafficWorks();
        return ExpectMemoryUntouched();
      case 7:
        return OfferReceive(input.Take<uint8_t>() % 2 == 0 ? open_qp_ : open_ud_);
      case 8:
        return SendToMallory(input);
      case 9:
        world_.dma.is_held = false;  // as above
        return ConnectToBob(input.Take<uint8_t>() % qps_.size());
      case 10:
        world_.dma.is_held = !world_.dma.is_held;
        return;
      case 11:
        if (input.Take<uint8_t>() % 4 == 0) Leave();
        return;
      case 12:
        world_.dma.Step(*world_.device, world_.now);
        return;
      default:
        Post(input);
        if (input.Take<uint8_t>() % 4 != 0) world_.Settle();
    }
  }

  // Memory first: the world's end still moves some.
  alignas(64) std::array<uint8_t, 256> vault_{}, vault_model_{};
  alignas(64) std::array<uint8_t, 256> private_{};
  std::array<uint8_t, 256> private_model_;
  alignas(64) std::array<uint8_t, 64> source_{};
  alignas(64) std::array<uint8_t, 768> guarded_{};
  alignas(64) std::array<uint8_t, 256> mailbox_{};
  std::vector<uint8_t> arena_ = std::vector<uint8_t>(8'192, 0xee);

  TestWorld world_;
  TestClient& alice_;
  TestClient& bob_;
  TestCq alice_cq_, bob_cq_;
  TestQp alice_qp_, bob_qp_;
  TestMr vault_mr_, private_mr_, source_mr_, window_mr_, mailbox_mr_, arena_mr_;
  shm::Handle open_pd_ = bob_.AllocPd();
  TestCq open_cq_;
  TestQp open_qp_, open_ud_;
  uint64_t honest_rounds_ = 0;

  TestClient* mallory_ = nullptr;
  std::vector<uint32_t> words_;  // handles, keys and numbers that she knows
  std::vector<TestQp> qps_;
  uint32_t next_slot_ = kFirstSlot;
  uint32_t departures_ = 0;
};

}  // namespace
}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::fuzz::Stage stage;
  stage.Play({data, size});
  return 0;
}
