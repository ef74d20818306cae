// Ports, and their GID and P_Key tables.
#include <endian.h>
#include <string.h>

#include "core/client/port_speed.h"
#include "verbs_shim/objects.h"
#include "verbs_shim/symver.h"

#undef ibv_query_port

namespace verbena::verbs {
namespace {

// Walks the table in replies from `index` on. `visit(entry)` returns false to stop.
template <typename Visit>
int ForEachGid(Context* context, uint32_t port, uint32_t index, Visit visit) {
  do {
    shm::PortRequest request = {port, index};
    shm::QueryGidTableReply reply = {};
    int error = Execute(context, shm::CommandOp::kQueryGidTable, request, &reply);
    if (error != 0) return error;
    uint32_t count =
        reply.count < shm::kGidEntriesPerReply ? reply.count : shm::kGidEntriesPerReply;
    for (uint32_t i = 0; i < count; ++i) {
      if (!visit(reply.entries[i])) return 0;
    }
    if (reply.next_index <= index) return 0;  // 0: complete
    index = reply.next_index;
  } while (true);
}

ibv_gid_entry ToEntry(const shm::GidEntry& in, uint32_t port) {
  ibv_gid_entry out = {};
  memcpy(out.gid.raw, in.raw, sizeof(in.raw));
  out.gid_index = in.index;
  out.port_num = port;
  out.gid_type = in.type;
  out.ndev_ifindex = in.ifindex;
  return out;
}

// Programs may know a longer entry than this library, whose rest reads as zero, never a shorter.
bool ValidEntryBytes(size_t entry_bytes) { return entry_bytes >= sizeof(ibv_gid_entry); }

void StoreEntry(const ibv_gid_entry& entry, void* out, size_t entry_bytes) {
  memset(out, 0, entry_bytes);
  memcpy(out, &entry, sizeof(entry));
}

}  // namespace

int QueryPort(Context* context, uint32_t port, PortAttrV64* out) {
  shm::QueryPortReply reply = {};
  int error = Execute(context, shm::CommandOp::kQueryPort, shm::PortRequest{port, 0}, &reply);
  if (error != 0) return error;
  *out = {};
  ibv_port_attr& attr = out->attr;
  attr.state = static_cast<ibv_port_state>(reply.state);
  attr.max_mtu = static_cast<ibv_mtu>(reply.max_mtu);
  attr.active_mtu = static_cast<ibv_mtu>(reply.active_mtu);
  attr.gid_tbl_len = static_cast<int>(reply.gid_tbl_len);
  attr.port_cap_flags = reply.port_cap_flags;
  attr.port_cap_flags2 = static_cast<uint16_t>(reply.port_cap_flags2);
  attr.max_msg_sz = reply.max_msg_sz;
  attr.bad_pkey_cntr = reply.bad_pkey_cntr;
  attr.qkey_viol_cntr = reply.qkey_viol_cntr;
  attr.pkey_tbl_len = static_cast<uint16_t>(reply.pkey_tbl_len);
  attr.lid = static_cast<uint16_t>(reply.lid);
  attr.sm_lid = static_cast<uint16_t>(reply.sm_lid);
  attr.lmc = static_cast<uint8_t>(reply.lmc);
  attr.max_vl_num = static_cast<uint8_t>(reply.max_vl_num);
  attr.sm_sl = static_cast<uint8_t>(reply.sm_sl);
  attr.subnet_timeout = static_cast<uint8_t>(reply.subnet_timeout);
  attr.init_type_reply = static_cast<uint8_t>(reply.init_type_reply);
  attr.active_width = static_cast<uint8_t>(reply.active_width);
  attr.active_speed = static_cast<uint8_t>(reply.active_speed);
  attr.phys_state = static_cast<uint8_t>(reply.phys_state);
  attr.link_layer = static_cast<uint8_t>(reply.link_layer);
  attr.flags = static_cast<uint8_t>(reply.flags);
  out->active_speed_ex = reply.active_speed;
  return 0;
}

// Fills what the program's version of ibv_port_attr holds.  Errors: EINVAL: no such port.
int QueryPortSized(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t attr_bytes) {
  PortAttrV64 full;
  int error = QueryPort(ToContext(context), port, &full);
  if (error != 0) return error;
  memset(static_cast<void*>(attr), 0, attr_bytes);
  memcpy(static_cast<void*>(attr), &full, attr_bytes < sizeof(full) ? attr_bytes : sizeof(full));
  return 0;
}

VERBENA_EXPORT int ibv_query_port(ibv_context* context, uint8_t port,
                                  struct _compat_ibv_port_attr* attr) {
  return QueryPortSized(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                        kPortAttrBytesCompat);
}

// v64. In units of 100 Mb/s.
VERBENA_EXPORT int ibv_query_port_speed(ibv_context* context, uint32_t port, uint64_t* speed) {
  PortAttrV64 full;
  int error = QueryPort(ToContext(context), port, &full);
  if (error != 0) return error;
  *speed = client::PortSpeed100Mbps(full.active_speed_ex, full.attr.active_width);
  return 0;
}

int QueryGid(Context* context, uint32_t port, uint32_t index, ibv_gid_entry* out) {
  bool found = false;
  int error = ForEachGid(context, port, index, [&](const shm::GidEntry& entry) {
    found = entry.index == index;
    if (found) *out = ToEntry(entry, port);
    return false;
  });
  if (error != 0) return error;
  if (found) return 0;
  PortAttrV64 full;
  error = QueryPort(context, port, &full);
  if (error != 0) return error;
  return index < static_cast<uint32_t>(full.attr.gid_tbl_len) ? ENODATA : EINVAL;
}

// -1 with errno EINVAL: no such port or index. An empty entry is the zero GID.
VERBENA_EXPORT int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entry = {};
  int error = QueryGid(ToContext(context), port, static_cast<uint32_t>(index), &entry);
  if (error != 0 && error != ENODATA) {
    errno = error;
    return -1;
  }
  *gid = entry.gid;
  return 0;
}

// Errors: ENODATA: an empty entry; EINVAL: no such port or index, a flag, or a short entry.
VERBENA_EXPORT int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index,
                                     ibv_gid_entry* out, uint32_t flags, size_t entry_bytes) {
  if (flags != 0 || !ValidEntryBytes(entry_bytes)) return EINVAL;
  ibv_gid_entry entry;
  int error = QueryGid(ToContext(context), port, index, &entry);
  if (error == 0) StoreEntry(entry, out, entry_bytes);
  return error;
}

// The number of entries, or a negative errno: -EINVAL when they do not fit.
VERBENA_EXPORT ssize_t _ibv_query_gid_table(ibv_context* base, ibv_gid_entry* out,
                                            size_t max_entries, uint32_t flags,
                                            size_t entry_bytes) {
  if (flags != 0 || !ValidEntryBytes(entry_bytes)) return -EINVAL;
  Context* context = ToContext(base);
  size_t count = 0;
  bool fits = true;
  for (uint32_t port = 1; port <= context->attr.phys_port_cnt; ++port) {
    int error = ForEachGid(context, port, 0, [&](const shm::GidEntry& entry) {
      fits = count < max_entries;
      if (!fits) return false;
      StoreEntry(ToEntry(entry, port), reinterpret_cast<char*>(out) + count * entry_bytes,
                 entry_bytes);
      ++count;
      return true;
    });
    if (error != 0) return -error;
    if (!fits) return -EINVAL;
  }
  return static_cast<ssize_t>(count);
}

// In the private node, but ibv_devinfo and pyverbs call it. `type`: 0 RoCE v1, 1 RoCE v2.
VERBENA_EXPORT int ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned int index,
                                      int* type) {
  ibv_gid_entry entry = {};
  int error = QueryGid(ToContext(context), port, index, &entry);
  if (error != 0 && error != ENODATA) {
    errno = error;
    return -1;
  }
  *type = error == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

// Big-endian. -1 with errno EINVAL: no such port or index.
VERBENA_EXPORT int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* pkey) {
  shm::QueryPkeyReply reply = {};
  int error = Execute(ToContext(context), shm::CommandOp::kQueryPkey,
                      shm::PortRequest{port, static_cast<uint32_t>(index)}, &reply);
  if (error != 0) {
    errno = error;
    return -1;
  }
  *pkey = htobe16(static_cast<uint16_t>(reply.pkey));
  return 0;
}

// The index, or -1 when the table does not hold the key.
VERBENA_EXPORT int ibv_get_pkey_index(ibv_context* base, uint8_t port, __be16 pkey) {
  Context* context = ToContext(base);
  PortAttrV64 full;
  int error = QueryPort(context, port, &full);
  for (uint32_t i = 0; error == 0 && i < full.attr.pkey_tbl_len; ++i) {
    shm::QueryPkeyReply reply = {};
    error = Execute(context, shm::CommandOp::kQueryPkey, shm::PortRequest{port, i}, &reply);
    if (error == 0 && htobe16(static_cast<uint16_t>(reply.pkey)) == pkey) {
      return static_cast<int>(i);
    }
  }
  errno = error != 0 ? error : EINVAL;
  return -1;
}

}  // namespace verbena::verbs

VERBENA_VERSION_1_1(ibv_query_port);
VERBENA_VERSION_1_1(ibv_query_gid);
VERBENA_VERSION_1_1(ibv_query_pkey);
VERBENA_IN_ALL_PRIVATE_NODES("function", ibv_query_gid_type);
