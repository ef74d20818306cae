// What completions look like to the program.
#include <string.h>

#include <algorithm>

#include "fi_shim/completion_queue.h"

namespace verbena::fi {

size_t EntryBytes(fi_cq_format format) {
  switch (format) {
    case FI_CQ_FORMAT_UNSPEC:
    case FI_CQ_FORMAT_CONTEXT:
      return sizeof(fi_cq_entry);
    case FI_CQ_FORMAT_MSG:
      return sizeof(fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
      return sizeof(fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED:
      return sizeof(fi_cq_tagged_entry);
  }
  return 0;
}

void WriteEntry(fi_cq_format format, const Completion& completion, void* out) {
  // Each format begins as the one before it.
  const fi_cq_tagged_entry entry = {completion.context, completion.flags, completion.len,
                                    completion.buf,     completion.data,  completion.tag};
  memcpy(out, &entry, EntryBytes(format));
}

void WriteErrorEntry(uint32_t api_version, const Failure& failure, ErrDataPlace* place,
                     fi_cq_err_entry* out) {
  out->op_context = failure.context;
  out->flags = failure.flags;
  out->len = failure.len;
  out->buf = failure.buf;
  out->data = failure.data;
  out->tag = failure.tag;
  out->olen = failure.olen;
  out->err = failure.error;
  out->prov_errno = failure.provider;
  const bool is_text = failure.text != nullptr;
  const void* data = is_text ? failure.text : failure.err_data;
  size_t bytes = is_text ? strlen(failure.text) + 1 : failure.err_data_bytes;
  const bool has_size = FI_VERSION_GE(api_version, FI_VERSION(1, 5));
  if (has_size && out->err_data_size != 0) {
    bytes = std::min(bytes, out->err_data_size);
    if (bytes != 0) memcpy(out->err_data, data, bytes);
    // fi_cq_strerror will get it back.
    if (is_text && bytes != 0) static_cast<char*>(out->err_data)[bytes - 1] = '\0';
    out->err_data_size = bytes;
    return;
  }
  bytes = std::min(bytes, sizeof(place->bytes));
  if (bytes != 0) memcpy(place->bytes, data, bytes);
  if (is_text && bytes != 0) place->bytes[bytes - 1] = '\0';
  out->err_data = bytes != 0 ? place->bytes : nullptr;
  if (has_size) out->err_data_size = bytes;
}

}  // namespace verbena::fi
