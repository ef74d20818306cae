// Raw keys: what a key is on the wire, 32 bits in network order, and their mapping at the peer.
#include <arpa/inet.h>
#include <string.h>

#include <new>

#include "fi_shim/mr.h"

namespace verbena::fi {

// A key that the program has mapped, so often.
struct RawKey {
  RawKey* next = nullptr;
  uint64_t key = 0;
  uint64_t uses = 0;
};

namespace {

int Map(Domain* domain, const struct fi_mr_map_raw* map) {
  if (map == nullptr || map->raw_key == nullptr || map->key == nullptr) return -FI_EINVAL;
  if (map->flags != 0 || map->key_size != kMrKeyBytes) return -FI_EINVAL;
  uint32_t raw;
  memcpy(&raw, map->raw_key, sizeof(raw));
  const uint64_t key = ntohl(raw);
  client::MutexGuard guard(domain->keys_mutex);
  RawKey* known = domain->raw_keys;
  while (known != nullptr && known->key != key) known = known->next;
  if (known == nullptr) {
    known = new (std::nothrow) RawKey();
    if (known == nullptr) return -FI_ENOMEM;
    known->key = key;
    known->next = domain->raw_keys;
    domain->raw_keys = known;
  }
  ++known->uses;
  domain->users.fetch_add(1);  // keys are to be unmapped before the domain is closed
  *map->key = key;
  return 0;
}

int Unmap(Domain* domain, uint64_t key) {
  client::MutexGuard guard(domain->keys_mutex);
  RawKey** link = &domain->raw_keys;
  while (*link != nullptr && (*link)->key != key) link = &(*link)->next;
  RawKey* known = *link;
  if (known == nullptr) return -FI_EINVAL;
  domain->users.fetch_sub(1);
  if (--known->uses != 0) return 0;
  *link = known->next;
  delete known;
  return 0;
}

}  // namespace

// Errors: -FI_EINVAL: a key of another form; of unmapping: none such is mapped.
int ControlRawKeys(Domain* domain, int command, void* arg) {
  switch (command) {
    case FI_MAP_RAW_MR:
      return Map(domain, static_cast<const struct fi_mr_map_raw*>(arg));
    case FI_UNMAP_KEY:
      return arg != nullptr ? Unmap(domain, *static_cast<const uint64_t*>(arg)) : -FI_EINVAL;
    default:
      return -FI_ENOSYS;
  }
}

// Errors: -FI_ETOOSMALL: *key_size says what is needed; -FI_EOPBADSTATE: it has no key yet.
int RawAttr(const Mr* mr, const struct fi_mr_raw_attr* out) {
  if (out == nullptr || out->key_size == nullptr || out->flags != 0) return -FI_EINVAL;
  const size_t room = *out->key_size;
  *out->key_size = kMrKeyBytes;
  if (out->raw_key == nullptr || room < kMrKeyBytes) return -FI_ETOOSMALL;
  if (mr->state->handle == 0) return -FI_EOPBADSTATE;
  const uint32_t raw = htonl(mr->state->key);
  memcpy(out->raw_key, &raw, sizeof(raw));
  if (out->base_addr != nullptr) {
    const bool is_virtual = (mr->domain->mr_mode & FI_MR_VIRT_ADDR) != 0;
    *out->base_addr = is_virtual ? mr->state->addr : 0;
  }
  return 0;
}

}  // namespace verbena::fi
