// Extended completion queues: one completion at a time, read field by field.
#include <time.h>

#include "verbs_shim/objects.h"

namespace verbena::verbs {
namespace {

constexpr uint64_t kWcFlagsStandard =
    IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |
    IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS;

bool LoadNext(Cq* cq) {
  cq->current = NextCompletion(cq);
  if (cq->current == nullptr) return false;
  cq->ex.status = static_cast<ibv_wc_status>(cq->current->status);
  cq->ex.wr_id = cq->current->wr_id;
  return true;
}

// 0: a completion is there, and end_poll must follow. ENOENT: the CQ is empty. EINVAL. EIO: a
// forked child's copy, or the daemon is gone and nothing will ever come.
int StartPoll(ibv_cq_ex* base, ibv_poll_cq_attr* attr) {
  if (attr->comp_mask != 0) return EINVAL;
  Cq* cq = ToCq(base);
  if (__builtin_expect(cq->context->session->IsForkedCopy(), 0)) return EIO;
  cq->lock.Lock();  // until end_poll, as libibverbs' providers do
  if (LoadNext(cq)) {
    cq->empty_polls.Reset();
    return 0;
  }
  const bool is_at_end = cq->is_at_end;
  cq->lock.Unlock();
  if (is_at_end) return EIO;
  cq->empty_polls.OnEmpty(cq->context->session);
  return ENOENT;
}

int NextPoll(ibv_cq_ex* base) {
  Cq* cq = ToCq(base);
  if (cq->current != nullptr) ConsumeCompletion(cq);
  return LoadNext(cq) ? 0 : ENOENT;
}

void EndPoll(ibv_cq_ex* base) {
  Cq* cq = ToCq(base);
  if (cq->current != nullptr) ConsumeCompletion(cq);
  cq->current = nullptr;
  cq->ring.Publish();
  cq->lock.Unlock();
}

ibv_wc_opcode ReadOpcode(ibv_cq_ex* cq) {
  return static_cast<ibv_wc_opcode>(ToCq(cq)->current->opcode);
}
uint32_t ReadVendorErr(ibv_cq_ex* cq) { return ToCq(cq)->current->vendor_err; }
uint32_t ReadByteLen(ibv_cq_ex* cq) { return ToCq(cq)->current->byte_len; }
__be32 ReadImmData(ibv_cq_ex* cq) { return ToCq(cq)->current->imm_or_rkey; }
uint32_t ReadQpNum(ibv_cq_ex* cq) { return ToCq(cq)->current->qpn; }
uint32_t ReadSrcQp(ibv_cq_ex* cq) { return ToCq(cq)->current->src_qpn; }
unsigned int ReadWcFlags(ibv_cq_ex* cq) { return ToCq(cq)->current->wc_flags; }
uint32_t ReadSlid(ibv_cq_ex*) { return 0; }  // RoCE has no LIDs
uint8_t ReadSl(ibv_cq_ex* cq) { return ToCq(cq)->current->sl; }
uint8_t ReadDlidPathBits(ibv_cq_ex*) { return 0; }
uint64_t ReadCompletionTs(ibv_cq_ex* cq) { return ToCq(cq)->current->timestamp_ns; }

// The device counts monotonic time; the program wants the time of day.
uint64_t ReadCompletionWallclockNs(ibv_cq_ex* cq) {
  timespec monotonic, real;
  clock_gettime(CLOCK_MONOTONIC, &monotonic);
  clock_gettime(CLOCK_REALTIME, &real);
  int64_t offset_ns = (int64_t{real.tv_sec} - monotonic.tv_sec) * 1'000'000'000 +
                      (real.tv_nsec - monotonic.tv_nsec);
  return ToCq(cq)->current->timestamp_ns + static_cast<uint64_t>(offset_ns);
}

}  // namespace

// A field's reader exists only if its flag was asked for at creation, as in libibverbs.
void SetReadOps(Cq* cq, uint64_t wc_flags) {
  ibv_cq_ex& ex = cq->ex;
  ex.start_poll = StartPoll;
  ex.next_poll = NextPoll;
  ex.end_poll = EndPoll;
  ex.read_opcode = ReadOpcode;
  ex.read_vendor_err = ReadVendorErr;
  ex.read_wc_flags = ReadWcFlags;
  if (wc_flags & IBV_WC_EX_WITH_BYTE_LEN) ex.read_byte_len = ReadByteLen;
  if (wc_flags & IBV_WC_EX_WITH_IMM) ex.read_imm_data = ReadImmData;
  if (wc_flags & IBV_WC_EX_WITH_QP_NUM) ex.read_qp_num = ReadQpNum;
  if (wc_flags & IBV_WC_EX_WITH_SRC_QP) ex.read_src_qp = ReadSrcQp;
  if (wc_flags & IBV_WC_EX_WITH_SLID) ex.read_slid = ReadSlid;
  if (wc_flags & IBV_WC_EX_WITH_SL) ex.read_sl = ReadSl;
  if (wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS) ex.read_dlid_path_bits = ReadDlidPathBits;
  if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) ex.read_completion_ts = ReadCompletionTs;
  if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
    ex.read_completion_wallclock_ns = ReadCompletionWallclockNs;
  }
}

// Errors: EOPNOTSUPP: a field this device does not report; EINVAL: an unknown mask or flag, or a PD
// that is no parent domain; as ibv_create_cq.
ibv_cq_ex* CreateCqEx(ibv_context* base, ibv_cq_init_attr_ex* attr) {
  Context* context = ToContext(base);
  uint64_t supported = kWcFlagsStandard;
  if (context->attr.completion_timestamp_mask != 0) supported |= kWcFlagsTimestamps;
  if ((attr->wc_flags & ~supported) != 0) return Fail<ibv_cq_ex>(EOPNOTSUPP);
  if ((attr->comp_mask & ~(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)) != 0) {
    return Fail<ibv_cq_ex>(EINVAL);
  }
  if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0 &&
      (attr->parent_domain == nullptr || attr->parent_domain->context != base ||
       ToPd(attr->parent_domain)->parent_of == nullptr)) {
    return Fail<ibv_cq_ex>(EINVAL);
  }
  constexpr uint32_t kFlags =
      IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 && (attr->flags & ~kFlags) != 0) {
    return Fail<ibv_cq_ex>(EINVAL);
  }
  Cq* cq = CreateCq(context, *attr);
  if (cq == nullptr) return nullptr;
  SetReadOps(cq, attr->wc_flags);
  return &cq->ex;
}

}  // namespace verbena::verbs
