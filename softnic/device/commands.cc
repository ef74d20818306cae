// The command table: which handler runs a CommandOp, and how many payload bytes it takes.
#include <cerrno>
#include <cstring>

#include "core/shm/rdm.h"
#include "softnic/device/device_core.h"

namespace verbena::softnic {

using shm::CommandOp;

const DeviceCore::CommandRow& DeviceCore::RowOf(CommandOp op) {
  using D = DeviceCore;
  constexpr uint32_t kHandle = sizeof(shm::HandleRequest);
  constexpr uint32_t kPort = sizeof(shm::PortRequest);
  constexpr uint32_t kMcast = sizeof(shm::McastRequest);
  static constexpr CommandRow kRows[] = {
      {&D::Nop, 0},
      {&D::QueryDevice, 0},
      {&D::QueryPort, kPort},
      {&D::QueryGidTable, kPort},
      {&D::QueryPkey, kPort},
      {&D::AllocPd, 0},
      {&D::DeallocPd, kHandle},
      {&D::RegMr, sizeof(shm::RegMrRequest)},
      {&D::DeregMr, kHandle},
      {&D::CreateChannel, 0},
      {&D::DestroyChannel, kHandle},
      {&D::CreateCq, sizeof(shm::CreateCqRequest)},
      {&D::ResizeCq, sizeof(shm::ResizeCqRequest)},
      {&D::DestroyCq, kHandle},
      {&D::CreateSrq, sizeof(shm::CreateSrqRequest)},
      {&D::ModifySrq, sizeof(shm::ModifySrqRequest)},
      {&D::QuerySrq, kHandle},
      {&D::DestroySrq, kHandle},
      {&D::CreateQp, sizeof(shm::CreateQpRequest)},
      {&D::ModifyQp, sizeof(shm::ModifyQpRequest)},
      {&D::QueryQp, kHandle},
      {&D::DestroyQp, kHandle},
      {&D::CreateAh, sizeof(shm::CreateAhRequest)},
      {&D::DestroyAh, kHandle},
      {&D::AttachMcast, kMcast},
      {&D::DetachMcast, kMcast},
      {&D::OpenPayload, sizeof(shm::OpenPayloadRequest)},
      {&D::AllocTd, 0},
      {&D::DeallocTd, kHandle},
      {&D::ModifyCq, sizeof(shm::ModifyCqRequest)},
      {&D::AllocMw, sizeof(shm::AllocMwRequest)},
      {&D::DeallocMw, kHandle},
      {&D::ReregMr, sizeof(shm::ReregMrRequest)},
      {&D::AllocNullMr, kHandle},
      {&D::AllocDm, sizeof(shm::AllocDmRequest)},
      {&D::FreeDm, kHandle},
      {&D::RegDmMr, sizeof(shm::RegDmMrRequest)},
      {&D::ImportPd, kHandle},
      {&D::ImportMr, sizeof(shm::ImportMrRequest)},
      {&D::ImportDm, kHandle},
      {&D::OpenAssist, sizeof(shm::OpenAssistRequest)},
      {&D::AllocOwnKeyPd, 0},
      {&D::EnableMr, kHandle},
      {&D::CreateCounter, 0},
      {&D::DestroyCounter, kHandle},
      {&D::BindMrCounter, sizeof(shm::BindMrCounterRequest)},
      {&D::BindQpCounter, sizeof(shm::BindQpCounterRequest)},
      {&D::CancelRecv, sizeof(shm::CancelRecvRequest)},
      {&D::CreatePlace, sizeof(shm::CreatePlaceRequest)},
      {&D::DestroyPlace, kHandle},
      {&D::NameSource, sizeof(shm::NameSourceRequest)},
      {&D::QuerySource, sizeof(shm::QuerySourceRequest)},
  };
  static_assert(std::size(kRows) == static_cast<size_t>(CommandOp::kCount));
  return kRows[static_cast<size_t>(op)];
}

void DeviceCore::OnCommand(Instant now, SessionId id, uint32_t slot, uint32_t submitted,
                           const shm::CommandRequest& request) {
  AdvanceTo(now);
  Session* session = FindSession(id);
  if (session == nullptr || session->is_closing) return;
  ++commands_;
  if (request.op >= static_cast<uint32_t>(CommandOp::kCount)) {
    ++hostile_acts_;
    Complete(*session, slot, submitted, EOPNOTSUPP, nullptr, 0);
    return;
  }
  Command command;
  command.session = session;
  command.slot = slot;
  command.submitted = submitted;
  command.op = static_cast<CommandOp>(request.op);
  command.payload = request.payload;
  command.number = RecordCommand(*session, command.op);

  const CommandRow& row = RowOf(command.op);
  int error = EINVAL;
  if (request.payload_bytes == row.payload_bytes) {
    error = (this->*row.handler)(command);
  } else {
    ++hostile_acts_;
  }
  if (!command.is_deferred) {
    RecordCommandEnd(command.number, error);
    Complete(*session, slot, submitted, error, command.reply, error == 0 ? command.reply_bytes : 0);
  }
  Settle();
}

void DeviceCore::Complete(Session& session, uint32_t slot, uint32_t submitted, int error,
                          const void* payload, uint32_t payload_bytes) {
  session.services->CompleteCommand(slot, submitted, error, payload, payload_bytes, 0);
}

void DeviceCore::FinishAfterFence(Command& command, Retired retired) {
  FinishAfterFenceOf(command.session->id, command, std::move(retired));
}

void DeviceCore::FinishAfterFenceOf(SessionId owner, Command& command, Retired retired) {
  FenceRecord record;
  record.session = command.session->id;
  record.ends_command = true;
  record.retired = std::move(retired);
  record.slot = command.slot;
  record.submitted = command.submitted;
  record.command_number = command.number;
  VERBENA_CHECK(command.reply_bytes <= record.reply.size());
  record.reply_bytes = command.reply_bytes;
  std::memcpy(record.reply.data(), command.reply, command.reply_bytes);
  command.is_deferred = true;
  BeginFence(owner, std::move(record));
}

uint64_t DeviceCore::BeginFence(SessionId owner, FenceRecord record) {
  const uint64_t cookie = next_fence_++;
  fences_.emplace(cookie, std::move(record));
  dma_->Fence(owner, cookie);
  return cookie;
}

void DeviceCore::OnDmaFence(Instant now, uint64_t cookie) {
  AdvanceTo(now);
  auto it = fences_.find(cookie);
  if (it == fences_.end()) return;
  FenceRecord record = std::move(it->second);
  fences_.erase(it);
  if (record.waiting_qp.life != 0) return OnKeysSettled(cookie, record.waiting_qp, record.waiter);
  Session* session = FindSession(record.session);
  Release(session, &record.retired);
  if (!releases_.empty()) Settle();
  if (!record.retired.others.IsEmpty()) {
    const SessionId next = record.retired.others.TakeOne();
    BeginFence(next, std::move(record));
    return;
  }
  if (record.ends_session) sessions_.erase(record.session);
  if (!record.ends_command) return;
  RecordCommandEnd(record.command_number, 0);
  // A session that closed meanwhile has nobody waiting.
  if (session == nullptr || session->is_closing) return;
  Complete(*session, record.slot, record.submitted, 0, record.reply.data(), record.reply_bytes);
}

uint64_t DeviceCore::RecordCommand(const Session& session, CommandOp op) {
  if (history_.size() == kHistoryCommands) history_.pop_front();
  PastCommand past;
  past.number = commands_;
  past.session = session.id;
  past.program = session.program;
  past.op = op;
  past.began = now_;
  history_.push_back(std::move(past));
  return commands_;
}

void DeviceCore::RecordCommandEnd(uint64_t number, int error) {
  if (history_.empty() || number < history_.front().number) return;
  // Numbers are consecutive but for refused commands, so the place is at most that far.
  for (auto it = history_.rbegin(); it != history_.rend(); ++it) {
    if (it->number != number) continue;
    it->error = error;
    it->is_done = true;
    it->ended = now_;
    return;
  }
}

int DeviceCore::Nop(Command& command) { return 0; }

int DeviceCore::QueryDevice(Command& command) {
  shm::QueryDeviceReply reply;
  command.session->nic->DescribeDevice(&reply);
  command.Reply(reply);
  return 0;
}

int DeviceCore::QueryPort(Command& command) {
  if (command.Request<shm::PortRequest>().port != kPortNumber) return EINVAL;
  shm::QueryPortReply reply;
  command.session->nic->DescribePort(&reply);
  command.Reply(reply);
  return 0;
}

int DeviceCore::QueryGidTable(Command& command) {
  auto request = command.Request<shm::PortRequest>();
  if (request.port != kPortNumber || request.index >= kGidTableEntries) return EINVAL;
  shm::QueryGidTableReply reply;
  command.session->nic->DescribeGids(request.index, &reply);
  command.Reply(reply);
  return 0;
}

int DeviceCore::QueryPkey(Command& command) {
  auto request = command.Request<shm::PortRequest>();
  if (request.port != kPortNumber || request.index >= kPkeyTableEntries) return EINVAL;
  command.Reply(shm::QueryPkeyReply{kDefaultPkey.value, 0});
  return 0;
}

}  // namespace verbena::softnic
