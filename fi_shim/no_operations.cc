// What endpoints have that do not do messages, RMA, tagged messages or atomics: the members of
// tables that programs call unasked.
#include "fi_shim/endpoint.h"
#include "fi_shim/unsupported.h"

namespace verbena::fi {

fi_ops_tagged no_tagged = {
    .size = sizeof(fi_ops_tagged),
    .recv = kUnsupported,
    .recvv = kUnsupported,
    .recvmsg = kUnsupported,
    .send = kUnsupported,
    .sendv = kUnsupported,
    .sendmsg = kUnsupported,
    .inject = kUnsupported,
    .senddata = kUnsupported,
    .injectdata = kUnsupported,
};
fi_ops_msg no_messages = {
    .size = sizeof(fi_ops_msg),
    .recv = kUnsupported,
    .recvv = kUnsupported,
    .recvmsg = kUnsupported,
    .send = kUnsupported,
    .sendv = kUnsupported,
    .sendmsg = kUnsupported,
    .inject = kUnsupported,
    .senddata = kUnsupported,
    .injectdata = kUnsupported,
};
fi_ops_rma no_rma = {
    .size = sizeof(fi_ops_rma),
    .read = kUnsupported,
    .readv = kUnsupported,
    .readmsg = kUnsupported,
    .write = kUnsupported,
    .writev = kUnsupported,
    .writemsg = kUnsupported,
    .inject = kUnsupported,
    .writedata = kUnsupported,
    .injectdata = kUnsupported,
};
fi_ops_atomic no_atomics = {
    .size = sizeof(fi_ops_atomic),
    .write = kUnsupported,
    .writev = kUnsupported,
    .writemsg = kUnsupported,
    .inject = kUnsupported,
    .readwrite = kUnsupported,
    .readwritev = kUnsupported,
    .readwritemsg = kUnsupported,
    .compwrite = kUnsupported,
    .compwritev = kUnsupported,
    .compwritemsg = kUnsupported,
    .writevalid = kUnsupported,
    .readwritevalid = kUnsupported,
    .compwritevalid = kUnsupported,
};

}  // namespace verbena::fi
