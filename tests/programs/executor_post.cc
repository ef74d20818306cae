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

std::vector<ibv_sge> Executor::ToSges(int side, const std::vector<Sge>& sges) const {
  std::vector<ibv_sge> list;
  for (const Sge& sge : sges) {
    auto key = lkeys_.find(sge.mr);
    const uint32_t lkey = key == lkeys_.end() ? 0 : key->second;
    list.push_back({reinterpret_cast<uint64_t>(sides_[side].arena) + sge.offset, sge.length,
                    lkey ^ sge.key_flip});
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
  *sges = ToSges(step.side, wr.sges);
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
    out.wr.ud.remote_qpn = qpn == qpns_.end() ? 0xfffff0 : qpn->second;
    out.wr.ud.remote_qkey = wr.qkey;
  }
  return out;
}

Actual Executor::PostSends(const Step& step) {
  std::vector<std::vector<ibv_sge>> sges(step.wrs.size());
  std::vector<ibv_send_wr> list;
  for (size_t i = 0; i < step.wrs.size(); ++i)
    list.push_back(ToSendWr(step, step.wrs[i], &sges[i]));
  for (size_t i = 1; i < list.size(); ++i) list[i - 1].next = &list[i];
  ibv_send_wr* bad = nullptr;
  Actual actual;
  actual.error = ibv_post_send(qps_.at(step.id), list.data(), &bad);
  if (actual.error != 0) actual.bad_index = IndexOf(list, bad);
  // A window keeps its key if the bind was not even posted.
  for (size_t i = 0; actual.error != 0 && i < step.wrs.size(); ++i) {
    const Wr& wr = step.wrs[step.wrs.size() - 1 - i];
    if (static_cast<int>(step.wrs.size() - 1 - i) < actual.bad_index) break;
    if (wr.opcode == IBV_WR_BIND_MW) rkeys_[wr.mw].pop_back();
  }
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
