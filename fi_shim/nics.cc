#include "fi_shim/nics.h"

#include <errno.h>
#include <string.h>

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

int OpenSession(uint32_t nic, client::Session** out, std::string* text) {
  client::NoCancel no_cancel;
  client::StartOptions options;
  bool may_start = false;
  if (!Prepare(&options, &may_start)) return Explained(errno, text);
  return Explained(client::OpenSession(options, may_start, nic, out, text), text);
}

}  // namespace verbena::fi
