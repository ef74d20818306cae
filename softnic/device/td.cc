// Thread domains.
#include <cerrno>

#include "softnic/device/device_core.h"

namespace verbena::softnic {

// One without a page, because all are taken, is as good but for its speed.
int DeviceCore::AllocTd(Command& command) {
  Session& session = *command.session;
  if (session.tds.IsFull()) return ENOMEM;
  auto owned = std::make_unique<Td>();
  Td* td = owned.get();
  shm::AllocTdReply reply{};
  td->page = session.doorbells.AddPage();
  if (td->page != DoorbellTable::kNoPage) {
    int error = session.services->AllocateQueue(shm::kThreadDoorbellPageBytes, &td->memory);
    if (error != 0) {
      session.doorbells.RemovePage(td->page);
      return error;
    }
    session.services->OpenDoorbells(td->page, td->memory);
    reply.place.arena = td->memory.arena;
    reply.place.offset = td->memory.offset;
    reply.place.bytes = td->memory.bytes;
  }
  reply.td = td->handle = session.tds.Insert(std::move(owned));
  command.Reply(reply);
  return 0;
}

int DeviceCore::DeallocTd(Command& command) {
  Session& session = *command.session;
  Td* td = session.tds.Find(command.Request<shm::HandleRequest>().handle);
  if (td == nullptr) return ENOENT;
  if (td->users != 0) return EBUSY;
  RemoveTd(session, *td);
  return 0;
}

void DeviceCore::RemoveTd(Session& session, Td& td) {
  if (td.page != DoorbellTable::kNoPage) {
    session.services->CloseDoorbells(td.page);
    session.services->FreeQueue(td.memory);
    session.doorbells.RemovePage(td.page);
  }
  session.tds.Remove(td.handle);
}

}  // namespace verbena::softnic
