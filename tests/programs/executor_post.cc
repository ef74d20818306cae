// Posting lists of work requests.
#include <algorithm>
#include <cerrno>

#include "tests/programs/executor.h"

namespace verbena::programs {
namespace {

template <typename Wr>
int IndexOf(const std::vector<Wr>& wrs, const Wr* wr) {
  return wr == nullptr ? -1 : static_cast<int>(wr - wrs.data());
}

}  // namespace

std::vector<ibv_sge> Executor::ToSges(int side, const std::vector<Sge>& sges,
                                      bool is_inline) const {
  std::vector<ibv_sge> list;
  for (const Sge& sge : sges) {
    auto key = lkeys_.find(sge.mr);
    const uint32_t lkey = key == lkeys_.end() ? 0 : key->second;
    uint64_t address = reinterpret_cast<uint64_t>(sides_[side].arena) + sge.offset;
    auto device = device_offsets_.find(sge.mr);
    // Inline data are the program's own bytes, whatever the key says.
    if (device != device_offsets_.end() && !is_inline)
      address = uint64_t{sge.offset} - device->second;
    list.push_back({address, sge.length, lkey ^ sge.key_flip});
  }
  return list;
}

bool Executor::HadKey(Id window, uint32_t rkey) const {
  auto keys = rkeys_.find(window);
  return keys != rkeys_.end() && std::any_of(keys->second.begin(), keys->second.end(),
                                             [rkey](const Key& key) { return key.rkey == rkey; });
}

// Of an MR, or of a window so many keys ago. What was never made has no key.
Executor::Key Executor::RemoteKey(const Wr& wr) const {
  auto keys = rkeys_.find(wr.remote);
  if (keys == rkeys_.end() || keys->second.size() <= wr.key_age) return {};
  Key key = keys->second[keys->second.size() - 1 - wr.key_age];
  key.rkey ^= wr.remote_flip;
  return key;
}

ibv_send_wr Executor::ToSendWr(const Step& step, const Wr& wr, std::vector<ibv_sge>* sges) {
  ibv_send_wr out = {};
  *sges = ToSges(step.side, wr.sges, (wr.flags & IBV_SEND_INLINE) != 0);
  out.wr_id = wr.wr_id;
  out.sg_list = sges->data();
  out.num_sge = static_cast<int>(sges->size());
  out.opcode = wr.opcode;
  out.send_flags = wr.flags;
  const Key remote = RemoteKey(wr);
  const uint64_t remote_base =
      remote.is_zero_based ? 0 : reinterpret_cast<uint64_t>(sides_[1 - step.side].arena);
  switch (wr.opcode) {
    case IBV_WR_LOCAL_INV:
    case IBV_WR_SEND_WITH_INV:
      out.invalidate_rkey = remote.rkey;
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      out.wr.atomic.remote_addr = remote_base + wr.remote_offset;
      out.wr.atomic.rkey = remote.rkey;
      out.wr.atomic.compare_add = wr.compare_add;
      out.wr.atomic.swap = wr.swap;
      break;
    case IBV_WR_BIND_MW: {
      ibv_mw* mw = mws_.at(wr.mw);
      out.bind_mw.mw = mw;
      out.bind_mw.rkey = ibv_inc_rkey(rkeys_.at(wr.mw).back().rkey);
      rkeys_[wr.mw].push_back({out.bind_mw.rkey, (wr.bind_access & IBV_ACCESS_ZERO_BASED) != 0});
      out.bind_mw.bind_info = {mrs_.at(wr.bind_mr),
                               reinterpret_cast<uint64_t>(sides_[step.side].arena) + wr.bind_offset,
                               wr.bind_length, wr.bind_access};
      break;
    }
    default:
      out.imm_data = wr.imm;
      out.wr.rdma.remote_addr = remote_base + wr.remote_offset;
      out.wr.rdma.rkey = remote.rkey;
  }
  if (wr.ah != 0) {
    out.imm_data = wr.imm;
    out.wr.ud.ah = ahs_.at(wr.ah);
    auto qpn = qpns_.find(wr.remote_qp);
    out.wr.ud.remote_qpn = groups_.count(wr.ah) != 0 ? 0xffffff  // whoever is attached
                           : qpn == qpns_.end()      ? 0xfffff0
                                                     : qpn->second;
    out.wr.ud.remote_qkey = wr.qkey;
  }
  return out;
}

// A window keeps its key if a bind was not even posted.
void Executor::DropBinds(const Step& step, int from) {
  for (size_t i = step.wrs.size(); i > 0 && static_cast<int>(i) > from; --i) {
    const Wr& wr = step.wrs[i - 1];
    if (wr.opcode == IBV_WR_BIND_MW) rkeys_[wr.mw].pop_back();
  }
}

void Executor::Build(ibv_qp_ex* qp, const ibv_send_wr& wr, const Wr& of, bool is_ud) {
  qp->wr_id = wr.wr_id;
  qp->wr_flags = wr.send_flags & ~unsigned{IBV_SEND_INLINE};
  if (wr.opcode == kWrFlush) {
    return reinterpret_cast<conformance::v64::QpEx*>(qp)->wr_flush(
        qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, of.flush_length, of.flush_type,
        of.flush_level);
  }
  switch (wr.opcode) {
    case IBV_WR_ATOMIC_WRITE:
      return ibv_wr_atomic_write(qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr,
                                 reinterpret_cast<const void*>(wr.sg_list[0].addr));
    case IBV_WR_SEND:
      ibv_wr_send(qp);
      break;
    case IBV_WR_SEND_WITH_IMM:
      ibv_wr_send_imm(qp, wr.imm_data);
      break;
    case IBV_WR_SEND_WITH_INV:
      ibv_wr_send_inv(qp, wr.invalidate_rkey);
      break;
    case IBV_WR_RDMA_WRITE:
      ibv_wr_rdma_write(qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      ibv_wr_rdma_write_imm(qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, wr.imm_data);
      break;
    case IBV_WR_RDMA_READ:
      ibv_wr_rdma_read(qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      ibv_wr_atomic_cmp_swp(qp, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr,
                            wr.wr.atomic.compare_add, wr.wr.atomic.swap);
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      ibv_wr_atomic_fetch_add(qp, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr,
                              wr.wr.atomic.compare_add);
      break;
    case IBV_WR_LOCAL_INV:
      return ibv_wr_local_inv(qp, wr.invalidate_rkey);
    default:
      return ibv_wr_bind_mw(qp, wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info);
  }
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    std::vector<ibv_data_buf> buffers;
    for (int i = 0; i < wr.num_sge; ++i) {
      buffers.push_back({reinterpret_cast<void*>(wr.sg_list[i].addr), wr.sg_list[i].length});
    }
    ibv_wr_set_inline_data_list(qp, buffers.size(), buffers.data());
  } else if (wr.num_sge == 1) {
    ibv_wr_set_sge(qp, wr.sg_list->lkey, wr.sg_list->addr, wr.sg_list->length);
  } else {
    ibv_wr_set_sge_list(qp, static_cast<size_t>(wr.num_sge), wr.sg_list);
  }
  if (is_ud) ibv_wr_set_ud_addr(qp, wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
}

Actual Executor::PostExtended(const Step& step) {
  Actual actual;
  ibv_qp* base = qps_.at(step.id);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(base);
  if (qp == nullptr) {
    actual.error = -1;
    return actual;
  }
  ibv_wr_start(qp);
  for (const Wr& wr : step.wrs) {
    std::vector<ibv_sge> sges;
    Build(qp, ToSendWr(step, wr, &sges), wr, base->qp_type == IBV_QPT_UD);
  }
  if (step.is_aborted) {
    ibv_wr_abort(qp);
  } else {
    actual.error = ibv_wr_complete(qp);
  }
  if (step.is_aborted || actual.error != 0) DropBinds(step, 0);
  return actual;
}

Actual Executor::PostSends(const Step& step) {
  if (step.is_extended) return PostExtended(step);
  std::vector<std::vector<ibv_sge>> sges(step.wrs.size());
  std::vector<ibv_send_wr> list;
  for (size_t i = 0; i < step.wrs.size(); ++i)
    list.push_back(ToSendWr(step, step.wrs[i], &sges[i]));
  for (size_t i = 1; i < list.size(); ++i) list[i - 1].next = &list[i];
  ibv_send_wr* bad = nullptr;
  Actual actual;
  actual.error = ibv_post_send(qps_.at(step.id), list.data(), &bad);
  if (actual.error != 0) actual.bad_index = IndexOf(list, bad);
  if (actual.error != 0) DropBinds(step, actual.bad_index);
  return actual;
}

Actual Executor::PostReceives(const Step& step) {
  std::vector<std::vector<ibv_sge>> sges(step.wrs.size());
  std::vector<ibv_recv_wr> list(step.wrs.size());
  for (size_t i = 0; i < list.size(); ++i) {
    sges[i] = ToSges(step.side, step.wrs[i].sges);
    list[i].wr_id = step.wrs[i].wr_id;
    list[i].sg_list = sges[i].data();
    list[i].num_sge = static_cast<int>(sges[i].size());
    if (i != 0) list[i - 1].next = &list[i];
  }
  ibv_recv_wr* bad = nullptr;
  Actual actual;
  actual.error = step.op == Op::kPostRecv ? ibv_post_recv(qps_.at(step.id), list.data(), &bad)
                                          : ibv_post_srq_recv(srqs_.at(step.id), list.data(), &bad);
  if (actual.error != 0) actual.bad_index = IndexOf(list, bad);
  return actual;
}

Actual Executor::BindType1(const Step& step) {
  const Wr& wr = step.wrs.front();
  ibv_mw* mw = mws_.at(step.id);
  ibv_mw_bind bind = {};
  bind.wr_id = wr.wr_id;
  bind.send_flags = wr.flags;
  bind.bind_info = {mrs_.at(step.mr),
                    reinterpret_cast<uint64_t>(sides_[step.side].arena) + wr.bind_offset,
                    wr.bind_length, wr.bind_access};
  Actual actual;
  actual.error = ibv_bind_mw(qps_.at(step.qp), mw, &bind);
  if (actual.error == 0) rkeys_[step.id].push_back({mw->rkey, false});
  return actual;
}

}  // namespace verbena::programs
