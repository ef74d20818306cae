#include "fi_shim/nics.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "core/client/instance.h"
#include "core/client/no_cancel.h"

namespace verbena::fi {
namespace {

// False with errno: there is no place for an instance.
bool Prepare(client::StartOptions* options, bool* may_start) {
  *may_start = client::AutostartAllowed();
  options->directory = client::InstanceDirectory(*may_start);
  return !options->directory.empty();
}

int Explained(int error, std::string* text) {
  if (error != 0 && text->empty()) *text = strerror(error);
  return error;
}

}  // namespace

int ListNics(std::vector<shm::NicInfo>* out, std::string* text) {
  client::NoCancel no_cancel;
  client::StartOptions options;
  bool may_start = false;
  if (!Prepare(&options, &may_start)) return Explained(errno, text);
  return Explained(client::ListInstanceNics(options, may_start, out, text), text);
}

int QueryNumbers(client::Session* session, shm::QueryDeviceReply* device,
                 shm::QueryPortReply* port) {
  const int error =
      session->Execute(shm::CommandOp::kQueryDevice, nullptr, 0, device, sizeof(*device));
  if (error != 0) return error;
  const shm::PortRequest request = {1, 0};
  return session->Execute(shm::CommandOp::kQueryPort, &request, sizeof(request), port,
                          sizeof(*port));
}

namespace {

int Query(client::Session* session, NicFacts* out) {
  int error = QueryNumbers(session, &out->device, &out->port);
  shm::PortRequest request = {1, 0};
  while (error == 0) {
    shm::QueryGidTableReply reply = {};
    error = session->Execute(shm::CommandOp::kQueryGidTable, &request, sizeof(request), &reply,
                             sizeof(reply));
    if (error != 0) break;
    const uint32_t count = std::min(reply.count, shm::kGidEntriesPerReply);
    out->gids.insert(out->gids.end(), reply.entries, reply.entries + count);
    if (reply.next_index <= request.index) break;
    request.index = reply.next_index;
  }
  return error;
}

}  // namespace

int QueryNic(uint32_t nic, NicFacts* out, std::string* text) {
  client::NoCancel no_cancel;
  client::Session* session = nullptr;
  if (const int error = OpenSession(nic, &session, text); error != 0) return error;
  const int error = Query(session, out);
  session->Close();
  return Explained(error, text);
}

int OpenSession(uint32_t nic, client::Session** out, std::string* text) {
  client::NoCancel no_cancel;
  client::StartOptions options;
  bool may_start = false;
  if (!Prepare(&options, &may_start)) return Explained(errno, text);
  return Explained(client::OpenSession(options, may_start, nic, out, text), text);
}

}  // namespace verbena::fi
