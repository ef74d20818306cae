// fi_av: addresses by number, for one process or for all that share its name.
#include "fi_shim/av.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "core/client/instance.h"
#include "core/client/no_cancel.h"
#include "fi_shim/av_shared.h"
#include "fi_shim/enums.h"
#include "fi_shim/fids.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {

struct Av::State {
  // Never dropped: addresses may be inserted while another thread sends by others, whatever the
  // threading model.  Spec: fi_domain(3), threading.
  Lock lock;
  AvStore* store = nullptr;
  AvTable table;
  List<fi_addr_t> user_ids;      // FI_AV_USER_ID, by number; FI_ADDR_NOTAVAIL: it has none
  bool is_asynchronous = false;  // FI_EVENT
  Eq* eq = nullptr;
};

namespace {

constexpr uint64_t kInsertFlags = FI_MORE | FI_SYNC_ERR | FI_AV_USER_ID;
constexpr size_t kNameBytesMax = 100;

Av* Of(fid_av* base) { return reinterpret_cast<Av*>(base); }

// By which completions name a source instead of its number. The lock is held. -FI_ENOMEM.
int SetUserId(Av::State* state, uint64_t number, fi_addr_t id) {
  if (number >= state->user_ids.size() && id == FI_ADDR_NOTAVAIL) return 0;
  if (!state->user_ids.Reserve(number + 1)) return -FI_ENOMEM;
  while (state->user_ids.size() <= number) state->user_ids.Push(FI_ADDR_NOTAVAIL);
  state->user_ids[number] = id;
  return 0;
}

// Of one insert call.
class Insertion {
 public:
  Insertion(Av* av, fi_addr_t* out, uint64_t flags, void* context)
      : av_(av),
        out_(out),
        errors_((flags & FI_SYNC_ERR) != 0 ? static_cast<int*>(context) : nullptr),
        has_user_ids_((flags & FI_AV_USER_ID) != 0),
        context_(context) {}

  // `address` of nullptr: `error` says why there is none.
  void Add(const SockAddress* address, int error = -FI_EINVAL) {
    uint64_t number = FI_ADDR_NOTAVAIL;
    if (address != nullptr) {
      Guard guard(av_->state->lock);
      error = av_->state->table.Insert(*address, &number);
      if (error == 0 && has_user_ids_) error = TakeUserId(number);
    }
    if (error == 0) {
      ++done_;
    } else {
      number = FI_ADDR_NOTAVAIL;
    }
    if (out_ != nullptr) out_[index_] = number;
    if (errors_ != nullptr) errors_[index_] = -error;
    if (error != 0 && av_->state->is_asynchronous) ReportFailure(-error);
    ++index_;
  }

  // What the call returns.
  int End() {
    if (done_ != 0) av_->own_insertions.fetch_add(1, std::memory_order_release);
    // Who remembers what an address was called has to ask anew.
    if (done_ != 0 && has_user_ids_) av_->own_removals.fetch_add(1, std::memory_order_release);
    if (!av_->state->is_asynchronous) return static_cast<int>(done_);
    const fi_eq_entry entry = {&av_->fid.fid, context_, done_};
    Post(av_->state->eq, FI_AV_COMPLETE, &entry, sizeof(entry));
    return 0;
  }

 private:
  int TakeUserId(uint64_t number) {
    const int error = SetUserId(av_->state, number, out_[index_]);
    bool is_gone;
    if (error != 0) av_->state->table.Remove(number, &is_gone);
    return error;
  }

  void ReportFailure(int error) {
    fi_eq_err_entry entry = {};
    entry.fid = &av_->fid.fid;
    entry.context = context_;
    entry.data = index_;
    entry.err = error;
    PostError(av_->state->eq, entry, nullptr, 0);
  }

  Av* av_;
  fi_addr_t* out_;
  int* errors_;
  bool has_user_ids_;
  void* context_;
  uint64_t index_ = 0, done_ = 0;
};

// What all insert calls refuse.
int CheckInsert(const Av* av, const fi_addr_t* out, uint64_t flags, const void* context) {
  if ((flags & ~kInsertFlags) != 0) return -FI_EBADFLAGS;
  if ((flags & FI_AV_USER_ID) != 0) {
    if ((av->domain->caps & FI_AV_USER_ID) == 0) return -FI_EBADFLAGS;
    if (out == nullptr) return -FI_EINVAL;  // it has the identifiers
  }
  if (av->state->is_asynchronous && av->state->eq == nullptr) return -FI_ENOEQ;
  if ((flags & FI_SYNC_ERR) != 0 && (av->state->is_asynchronous || context == nullptr)) {
    return -FI_EINVAL;
  }
  return 0;
}

int Insert(fid_av* base, const void* addresses, size_t count, fi_addr_t* out, uint64_t flags,
           void* context) {
  Av* av = Of(base);
  if (const int error = CheckInsert(av, out, flags, context); error != 0) return error;
  if (count != 0 && addresses == nullptr) return -FI_EINVAL;
  Insertion insertion(av, out, flags, context);
  auto* at = static_cast<const char*>(addresses);
  const bool is_in6 = av->domain->addr_format == FI_SOCKADDR_IN6;
  for (size_t i = 0; i < count; ++i) {
    SockAddress address = {};
    memcpy(&address.sa.sa_family, at, sizeof(address.sa.sa_family));
    const size_t own_bytes = AddressBytes(&address.sa);
    // One of no family has the length of its neighbours.
    const size_t bytes = own_bytes != 0 && av->domain->addr_format == FI_SOCKADDR
                             ? own_bytes
                             : (is_in6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    const bool is_valid = HasFormat(av->domain->addr_format, &address.sa) && bytes >= own_bytes;
    memcpy(&address, at, bytes);
    insertion.Add(is_valid ? &address : nullptr);
    at += bytes;
  }
  return insertion.End();
}

int InsertService(fid_av* base, const char* node, const char* service, fi_addr_t* out,
                  uint64_t flags, void* context) {
  Av* av = Of(base);
  if (const int error = CheckInsert(av, out, flags, context); error != 0) return error;
  if (node == nullptr) return -FI_EINVAL;
  SockAddress address;
  const int error = Resolve(node, service, false, av->domain->addr_format, &address);
  Insertion insertion(av, out, flags, context);
  insertion.Add(error == 0 ? &address : nullptr, error);
  return insertion.End();
}

// A host's name ends with a number that is counted on: host9, host10.
int ResolveNode(const char* node, size_t steps, uint32_t addr_format, SockAddress* out) {
  if (Resolve(node, nullptr, true, addr_format, out) == 0) {
    return Advance(out, steps) ? 0 : -FI_EINVAL;
  }
  if (steps == 0) return Resolve(node, nullptr, false, addr_format, out);
  size_t digits_at = strlen(node);
  while (digits_at > 0 && node[digits_at - 1] >= '0' && node[digits_at - 1] <= '9') --digits_at;
  if (node[digits_at] == '\0' || digits_at >= kNameBytesMax) return -FI_EINVAL;
  const int width = static_cast<int>(strlen(node) - digits_at);
  char name[2 * kNameBytesMax];
  snprintf(name, sizeof(name), "%.*s%0*llu", static_cast<int>(digits_at), node, std::min(width, 20),
           strtoull(node + digits_at, nullptr, 10) + steps);
  return Resolve(name, nullptr, false, addr_format, out);
}

int InsertSymmetric(fid_av* base, const char* node, size_t nodes, const char* service,
                    size_t services, fi_addr_t* out, uint64_t flags, void* context) {
  Av* av = Of(base);
  if (const int error = CheckInsert(av, out, flags, context); error != 0) return error;
  if (node == nullptr || service == nullptr) return -FI_EINVAL;
  char* end = nullptr;
  const unsigned long port = strtoul(service, &end, 10);
  constexpr unsigned long kPortMax = 65'535;
  if (*end != '\0' || end == service || port + services > kPortMax + 1) return -FI_EINVAL;
  Insertion insertion(av, out, flags, context);
  for (size_t n = 0; n < nodes; ++n) {
    SockAddress address;
    const int error = ResolveNode(node, n, av->domain->addr_format, &address);
    for (size_t s = 0; s < services; ++s) {
      if (error == 0) SetPort(&address, static_cast<uint16_t>(port + s));
      insertion.Add(error == 0 ? &address : nullptr, error);
    }
  }
  return insertion.End();
}

int Remove(fid_av* base, fi_addr_t* numbers, size_t count, uint64_t flags) {
  Av* av = Of(base);
  if (flags != 0) return -FI_EBADFLAGS;
  if (count != 0 && numbers == nullptr) return -FI_EINVAL;
  int error = 0;
  bool has_removed = false;
  for (size_t i = 0; i < count; ++i) {
    bool is_gone = false;
    Guard guard(av->state->lock);
    if (const int result = av->state->table.Remove(numbers[i], &is_gone); result != 0) {
      error = result;
    }
    if (is_gone) SetUserId(av->state, numbers[i], FI_ADDR_NOTAVAIL);
    has_removed |= is_gone;
  }
  if (has_removed) av->own_removals.fetch_add(1, std::memory_order_release);
  return error;
}

int LookUp(fid_av* base, fi_addr_t number, void* out, size_t* bytes) {
  if (bytes == nullptr || (out == nullptr && *bytes != 0)) return -FI_EINVAL;
  SockAddress address;
  if (!Lookup(Of(base), number, &address)) return -FI_EINVAL;
  const size_t needed = AddressBytes(&address.sa);
  if (*bytes != 0) memcpy(out, &address, std::min(*bytes, needed));
  *bytes = needed;
  return 0;
}

const char* ToString(fid_av*, const void* raw, char* buf, size_t* len) {
  if (raw == nullptr || len == nullptr) return nullptr;
  SockAddress address = {};
  memcpy(&address.sa.sa_family, raw, sizeof(address.sa.sa_family));
  const size_t bytes = AddressBytes(&address.sa);
  if (bytes == 0) return nullptr;
  memcpy(&address, raw, bytes);
  *len = Write(address, buf, *len);
  return buf;
}

int Close(fid* base) {
  auto* av = reinterpret_cast<Av*>(base);
  if (av->users.load() != 0) return -FI_EBUSY;
  client::NoCancel no_cancel;
  if (av->state->eq != nullptr) av->state->eq->users.fetch_sub(1);
  av->domain->users.fetch_sub(1);
  delete av->state->store;
  delete av->state;
  delete av;
  return 0;
}

int Bind(fid* base, fid* other, uint64_t flags) {
  auto* av = reinterpret_cast<Av*>(base);
  if (flags != 0) return -FI_EBADFLAGS;
  if (other == nullptr || other->fclass != FI_CLASS_EQ || av->state->eq != nullptr) {
    return -FI_EINVAL;
  }
  auto* eq = reinterpret_cast<Eq*>(other);
  if (eq->fabric != av->domain->fabric) return -FI_EINVAL;
  av->state->eq = eq;
  eq->users.fetch_add(1);
  return 0;
}

fi_ops g_fid_ops = FidOps(Close, Bind);
fi_ops_av g_ops = {sizeof(fi_ops_av), Insert,      InsertService, InsertSymmetric, Remove, LookUp,
                   ToString,          kUnsupported};

// 0 with the name of the file, of which nobody else's is one: any bytes may be in a name.
int PathOf(const Domain* domain, const char* name, std::string* path) {
  if (strlen(name) > kNameBytesMax || name[0] == '\0') return -FI_EINVAL;
  *path = client::InstanceDirectory(false);
  if (path->empty()) return -FI_EIO;
  *path += "/av-" + std::string(domain->name) + "-";
  for (const char* at = name; *at != '\0'; ++at) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(*at));
    *path += digits;
  }
  return 0;
}

int OpenStore(const Domain* domain, fi_av_attr* attr, Av* av, AvStore** out) {
  if (attr->name == nullptr) {
    *out = new (std::nothrow) PrivateAvStore();
    if (*out == nullptr) return -FI_ENOMEM;
    if (attr->count > kAvEntriesMax) return -FI_EINVAL;
    return (*out)->Grow(static_cast<uint32_t>(attr->count)) ? 0 : -FI_ENOMEM;
  }
  std::string path;
  if (const int error = PathOf(domain, attr->name, &path); error != 0) return error;
  SharedAvStore* store = nullptr;
  const int error = SharedAvStore::Open(path, attr->type, (attr->flags & FI_READ) != 0, &store);
  if (error != 0) return error;
  attr->type = store->type();
  // Numbers mean the same wherever it is mapped.
  if (attr->map_addr == nullptr) attr->map_addr = store->base();
  av->others = store->generation();
  *out = store;
  return 0;
}

}  // namespace

int OpenAv(fid_domain* base, fi_av_attr* attr, fid_av** out, void* context) {
  auto* domain = reinterpret_cast<Domain*>(base);
  if (attr == nullptr || out == nullptr || !IsUpTo(attr->type, FI_AV_TABLE)) return -FI_EINVAL;
  if ((attr->flags & ~(FI_EVENT | FI_READ | FI_SYMMETRIC)) != 0) return -FI_EBADFLAGS;
  if ((attr->flags & FI_READ) != 0 && attr->name == nullptr) return -FI_EINVAL;
  if (domain->av_type != FI_AV_UNSPEC) {
    if (attr->type == FI_AV_UNSPEC) attr->type = domain->av_type;
    if (attr->type != domain->av_type) return -FI_EINVAL;
  }
  if (attr->type == FI_AV_UNSPEC && attr->name == nullptr) attr->type = FI_AV_TABLE;
  client::NoCancel no_cancel;
  auto* av = new (std::nothrow) Av();
  auto* state = new (std::nothrow) Av::State();
  const int error =
      av == nullptr || state == nullptr ? -FI_ENOMEM : OpenStore(domain, attr, av, &state->store);
  if (error != 0) {
    if (state != nullptr) delete state->store;
    delete state;
    delete av;
    return error;
  }
  state->table.SetStore(state->store);
  state->is_asynchronous = (attr->flags & FI_EVENT) != 0;
  av->fid.fid = {FI_CLASS_AV, context, &g_fid_ops};
  av->fid.ops = &g_ops;
  av->domain = domain;
  av->state = state;
  domain->users.fetch_add(1);
  *out = &av->fid;
  return 0;
}

bool Lookup(Av* av, fi_addr_t number, SockAddress* out) {
  Guard guard(av->state->lock);
  return av->state->table.Lookup(number, out);
}

fi_addr_t FindByAddress(Av* av, const SockAddress& address) {
  Guard guard(av->state->lock);
  uint64_t number;
  if (!av->state->table.Find(address, &number)) return FI_ADDR_NOTAVAIL;
  const List<fi_addr_t>& ids = av->state->user_ids;
  return number < ids.size() && ids[number] != FI_ADDR_NOTAVAIL ? ids[number] : number;
}

}  // namespace verbena::fi
