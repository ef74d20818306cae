#include "tests/programs/program.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>

namespace verbena::programs {
namespace {

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string Access(uint32_t access) {
  static constexpr struct {
    uint32_t bit;
    const char* name;
  } kNames[] = {
      {IBV_ACCESS_LOCAL_WRITE, "LOCAL_WRITE"}, {IBV_ACCESS_REMOTE_WRITE, "REMOTE_WRITE"},
      {IBV_ACCESS_REMOTE_READ, "REMOTE_READ"}, {IBV_ACCESS_REMOTE_ATOMIC, "REMOTE_ATOMIC"},
      {IBV_ACCESS_MW_BIND, "MW_BIND"},         {IBV_ACCESS_ZERO_BASED, "ZERO_BASED"},
      {kAccessFlushGlobal, "FLUSH_GLOBAL"},    {kAccessFlushPersistent, "FLUSH_PERSISTENT"}};
  std::string text;
  for (const auto& [bit, name] : kNames) {
    if ((access & bit) != 0) text += (text.empty() ? "" : "|") + std::string(name);
  }
  return text.empty() ? "0" : text;
}

std::string Key(const char* kind, Id id, uint32_t flip, uint32_t age = 0) {
  std::string text = Format("%s%u", kind, id);
  if (flip != 0) text += Format("^%#x", flip);
  if (age != 0) text += Format(" %u key%s ago", age, age == 1 ? "" : "s");
  return text;
}

std::string ModifyText(const Step& step) {
  static constexpr struct {
    uint32_t bit;
    const char* name;
  } kNames[] = {{IBV_QP_CUR_STATE, "CUR_STATE"},
                {IBV_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"},
                {IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS"},
                {IBV_QP_PKEY_INDEX, "PKEY_INDEX"},
                {IBV_QP_PORT, "PORT"},
                {IBV_QP_QKEY, "QKEY"},
                {IBV_QP_AV, "AV"},
                {IBV_QP_PATH_MTU, "PATH_MTU"},
                {IBV_QP_TIMEOUT, "TIMEOUT"},
                {IBV_QP_RETRY_CNT, "RETRY_CNT"},
                {IBV_QP_RNR_RETRY, "RNR_RETRY"},
                {IBV_QP_RQ_PSN, "RQ_PSN"},
                {IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"},
                {IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"},
                {IBV_QP_SQ_PSN, "SQ_PSN"},
                {IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"},
                {IBV_QP_DEST_QPN, "DEST_QPN"}};
  std::string text = Format("ibv_modify_qp(qp%u", step.id);
  if ((step.mask & IBV_QP_STATE) != 0) text += Format(", %s", Name(step.attr.qp_state));
  for (const auto& [bit, name] : kNames) {
    if ((step.mask & bit) == 0) continue;
    text += Format(" %s", name);
    if (bit == IBV_QP_ACCESS_FLAGS) text += "=" + Access(step.attr.qp_access_flags);
    if (bit == IBV_QP_RNR_RETRY) text += Format("=%u", step.attr.rnr_retry);
    if (bit == IBV_QP_RETRY_CNT) text += Format("=%u", step.attr.retry_cnt);
    if (bit == IBV_QP_TIMEOUT) text += Format("=%u", step.attr.timeout);
    if (bit == IBV_QP_SQ_PSN) text += Format("=%#x", step.attr.sq_psn);
    if (bit == IBV_QP_RQ_PSN) text += Format("=%#x", step.attr.rq_psn);
    if (bit == IBV_QP_PATH_MTU) text += Format("=%u", 128u << step.attr.path_mtu);
    if (bit == IBV_QP_PORT) text += Format("=%u", step.attr.port_num);
    if (bit == IBV_QP_PKEY_INDEX) text += Format("=%u", step.attr.pkey_index);
    if (bit == IBV_QP_CUR_STATE) text += Format("=%s", Name(step.attr.cur_qp_state));
    if (bit == IBV_QP_QKEY) text += Format("=%#x", step.attr.qkey);
  }
  return text + ")";
}

std::string SgeText(const Wr& wr) {
  std::string text;
  for (const Sge& sge : wr.sges) {
    text +=
        Format(" {%s +%u, %u}", Key("mr", sge.mr, sge.key_flip).c_str(), sge.offset, sge.length);
  }
  return text;
}

std::string WrText(const Wr& wr, bool is_receive) {
  std::string text = Format("    wr_id=%" PRIu64, wr.wr_id);
  if (is_receive) return text + SgeText(wr);
  text += Format(" %s", Name(wr.opcode));
  if ((wr.flags & IBV_SEND_SIGNALED) != 0) text += " SIGNALED";
  if ((wr.flags & IBV_SEND_FENCE) != 0) text += " FENCE";
  if ((wr.flags & IBV_SEND_SOLICITED) != 0) text += " SOLICITED";
  if ((wr.flags & IBV_SEND_INLINE) != 0) text += " INLINE";
  text += SgeText(wr);
  if (wr.imm != 0) text += Format(" imm=%#x", wr.imm);
  if (wr.remote != 0) {
    text += Format(" remote {%s +%u}", Key("key", wr.remote, wr.remote_flip, wr.key_age).c_str(),
                   wr.remote_offset);
  }
  if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    text += Format(" compare=%#" PRIx64 " swap=%#" PRIx64, wr.compare_add, wr.swap);
  }
  if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) text += Format(" add=%#" PRIx64, wr.compare_add);
  if (wr.opcode == kWrFlush) {
    text += Format(" length=%u type=%u level=%u", wr.flush_length, wr.flush_type, wr.flush_level);
  }
  if (wr.ah != 0) text += Format(" ah%u qp%u qkey=%#x", wr.ah, wr.remote_qp, wr.qkey);
  if (wr.mw != 0) {
    text += Format(" mw%u to mr%u +%u, %u ", wr.mw, wr.bind_mr, wr.bind_offset, wr.bind_length) +
            Access(wr.bind_access);
  }
  return text;
}

std::string CallText(const Step& s) {
  switch (s.op) {
    case Op::kAllocPd:
      return Format("pd%u = ibv_alloc_pd(side %d)", s.id, s.side);
    case Op::kParentDomain:
      return Format("pd%u = ibv_alloc_parent_domain(pd%u, new td)", s.id, s.pd);
    case Op::kDeallocPd:
      return Format("ibv_dealloc_pd(pd%u)", s.id);
    case Op::kRegMr:
      return Format("mr%u = ibv_reg_mr(pd%u, +%u, %u, ", s.id, s.pd, s.offset, s.length) +
             Access(s.access) + ")";
    case Op::kReregMr:
      return Format("ibv_rereg_mr(mr%u, mask %u, pd%u, +%u, %u, ", s.id, s.mask, s.pd, s.offset,
                    s.length) +
             Access(s.access) + ")";
    case Op::kDeregMr:
      return Format("ibv_dereg_mr(mr%u)", s.id);
    case Op::kAllocMw:
      return Format("mw%u = ibv_alloc_mw(pd%u, type %d)", s.id, s.pd, s.mw_type);
    case Op::kDeallocMw:
      return Format("ibv_dealloc_mw(mw%u)", s.id);
    case Op::kBindMw:
      return Format("ibv_bind_mw(qp%u, mw%u)", s.qp, s.id);
    case Op::kCreateCq:
      return Format("cq%u = ibv_create_cq%s(side %d, %u%s)", s.id, s.is_extended ? "_ex" : "",
                    s.side, s.entries, s.other_channel ? ", the other side's channel" : "");
    case Op::kResizeCq:
      return Format("ibv_resize_cq(cq%u, %u)", s.id, s.entries);
    case Op::kDestroyCq:
      return Format("ibv_destroy_cq(cq%u)", s.id);
    case Op::kNotifyCq:
      return Format("ibv_req_notify_cq(cq%u, %d)", s.id, s.to_self);
    case Op::kCreateSrq:
      return Format("srq%u = ibv_create_srq(pd%u, %u, limit %u)", s.id, s.pd, s.entries, s.limit);
    case Op::kModifySrq:
      return Format("ibv_modify_srq(srq%u, mask %u, max_wr %u, limit %u)", s.id, s.mask, s.entries,
                    s.limit);
    case Op::kQuerySrq:
      return Format("ibv_query_srq(srq%u)", s.id);
    case Op::kDestroySrq:
      return Format("ibv_destroy_srq(srq%u)", s.id);
    case Op::kCreateQp:
      return Format(
          "qp%u = ibv_create_qp%s(pd%u, %s, cq%u, cq%u, srq%u, wr %u %u, sge %u %u, inline %u%s), "
          "peer qp%u",
          s.id, s.is_extended ? "_ex" : "", s.pd,
          s.type == IBV_QPT_RC   ? "RC"
          : s.type == IBV_QPT_UC ? "UC"
                                 : "UD",
          s.send_cq, s.recv_cq, s.srq, s.cap.max_send_wr, s.cap.max_recv_wr, s.cap.max_send_sge,
          s.cap.max_recv_sge, s.cap.max_inline_data, s.sq_sig_all ? ", all signalled" : "", s.peer);
    case Op::kModifyQp:
      return ModifyText(s);
    case Op::kQueryQp:
      return Format("ibv_query_qp(qp%u)", s.id);
    case Op::kDestroyQp:
      return Format("ibv_destroy_qp(qp%u)", s.id);
    case Op::kCreateAh:
      return Format("ah%u = ibv_create_ah(pd%u, to %s)", s.id, s.pd,
                    s.to_group  ? "the group"
                    : s.to_self ? "itself"
                                : "peer");
    case Op::kDestroyAh:
      return Format("ibv_destroy_ah(ah%u)", s.id);
    case Op::kAttachMcast:
      return Format("ibv_attach_mcast(qp%u)", s.id);
    case Op::kDetachMcast:
      return Format("ibv_detach_mcast(qp%u)", s.id);
    case Op::kPostSend:
      return Format(!s.is_extended ? "ibv_post_send(qp%u)"
                    : s.is_aborted ? "ibv_wr_start, ibv_wr_*, ibv_wr_abort(qp%u)"
                                   : "ibv_wr_start, ibv_wr_*, ibv_wr_complete(qp%u)",
                    s.id);
    case Op::kHoldCq:
      return Format("// cq%u is not polled", s.id);
    case Op::kReleaseCq:
      return Format("// cq%u is polled again", s.id);
    case Op::kAllocNullMr:
      return Format("mr%u = ibv_alloc_null_mr(pd%u)", s.id, s.pd);
    case Op::kRegDmMr:
      return Format("mr%u = ibv_reg_dm_mr(pd%u, +%u, %u, ", s.id, s.pd, s.offset, s.length) +
             Access(s.access) + ")";
    case Op::kPostRecv:
      return Format("ibv_post_recv(qp%u)", s.id);
    case Op::kPostSrqRecv:
      return Format("ibv_post_srq_recv(srq%u)", s.id);
  }
  return "?";
}

}  // namespace

const char* Name(ibv_wr_opcode opcode) {
  if (opcode == kWrFlush) return "FLUSH";
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
      return "RDMA_WRITE";
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return "RDMA_WRITE_WITH_IMM";
    case IBV_WR_SEND:
      return "SEND";
    case IBV_WR_SEND_WITH_IMM:
      return "SEND_WITH_IMM";
    case IBV_WR_RDMA_READ:
      return "RDMA_READ";
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return "ATOMIC_CMP_AND_SWP";
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return "ATOMIC_FETCH_AND_ADD";
    case IBV_WR_LOCAL_INV:
      return "LOCAL_INV";
    case IBV_WR_BIND_MW:
      return "BIND_MW";
    case IBV_WR_SEND_WITH_INV:
      return "SEND_WITH_INV";
    case IBV_WR_ATOMIC_WRITE:
      return "ATOMIC_WRITE";
    default:
      return "?";
  }
}

const char* Name(ibv_qp_state state) {
  static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return static_cast<unsigned>(state) < 7 ? kNames[state] : "?";
}

bool IsMaker(Op op) {
  switch (op) {
    case Op::kAllocPd:
    case Op::kParentDomain:
    case Op::kRegMr:
    case Op::kAllocMw:
    case Op::kCreateCq:
    case Op::kCreateSrq:
    case Op::kCreateQp:
    case Op::kCreateAh:
    case Op::kAllocNullMr:
    case Op::kRegDmMr:
      return true;
    default:
      return false;
  }
}

std::string ToString(const Step& step) {
  std::string text = CallText(step);
  const bool is_receive = step.op == Op::kPostRecv || step.op == Op::kPostSrqRecv;
  if (step.with_next) text += "  // and at once:";
  if (!step.wrong.empty()) text += "  // wrong: " + step.wrong;
  for (const Wr& wr : step.wrs) text += "\n" + WrText(wr, is_receive);
  return text;
}

}  // namespace verbena::programs
