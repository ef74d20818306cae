// fi_cq's inside: what a program has not read yet, and what entries look like in each format.
#pragma once

#include <cstdint>

#include "fi_shim/objects.h"

namespace verbena::fi {

// Bytes of an entry; 0: no such format.
size_t EntryBytes(fi_cq_format format);
// Writes one entry. FI_CQ_FORMAT_UNSPEC is FI_CQ_FORMAT_CONTEXT.
void WriteEntry(fi_cq_format format, const Completion& completion, void* out);
// As a program of that version of the interface has the structure: before 1.5 it ends with
// err_data. `text_place` is the provider's own buffer for err_data, which an older program, or one
// that brings no buffer, gets.
struct ErrDataPlace {
  char bytes[256];
};
void WriteErrorEntry(uint32_t api_version, const Failure& failure, ErrDataPlace* place,
                     fi_cq_err_entry* out);

int OpenCq(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context);
// Whether one more CQE can be handed out. The HwCq's lock is held.
bool HasRoom(Cq* cq);
// For so many that may be outstanding, beside the program's own size. False: no memory.
bool MakeRoom(Cq* cq, uint64_t outstanding);
int AddWakeFd(Cq* cq, int fd);
void RemoveWakeFd(Cq* cq, int fd);
// Whether something waits to be read; after progress.
bool HasEntries(Cq* cq);

}  // namespace verbena::fi
