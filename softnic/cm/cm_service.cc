#include "softnic/cm/cm_service.h"

#include "softnic/cm/core.h"

namespace verbena::softnic {

CmCounters& CmCounters::operator+=(const CmCounters& other) {
  static_assert(sizeof(CmCounters) == 14 * sizeof(uint64_t), "each is added below");
  sessions += other.sessions;
  channels += other.channels;
  ids += other.ids;
  communications += other.communications;
  ids_connected += other.ids_connected;
  events_waiting += other.events_waiting;
  requests += other.requests;
  requests_refused += other.requests_refused;
  backlog_drops += other.backlog_drops;
  mads_sent += other.mads_sent;
  mads_received += other.mads_received;
  mads_refused += other.mads_refused;
  mad_retries += other.mad_retries;
  mad_duplicates += other.mad_duplicates;
  return *this;
}

CmService::CmService(const CmServiceConfig& config) : core_(std::make_unique<CmCore>(config)) {}
CmService::~CmService() = default;

void CmService::SetNics(Instant now, std::vector<CmNic> nics) {
  core_->SetNics(now, std::move(nics));
}

void CmService::SetHostAddresses(std::vector<shm::CmAddress> addresses) {
  core_->SetHostAddresses(std::move(addresses));
}

uint32_t CmService::OpenSession() { return core_->OpenSession(); }

void CmService::CloseSession(Instant now, uint32_t session) { core_->CloseSession(now, session); }

void CmService::PrepareEnd(Instant now) { core_->PrepareEnd(now); }

bool CmService::AwaitsPeers() const { return core_->AwaitsPeers(); }

void CmService::OnRequest(Instant now, uint32_t session, const shm::CmRequest& request,
                          shm::CmReply* reply) {
  core_->OnRequest(now, session, request, reply);
}

void CmService::OnMad(Instant now, uint32_t nic, const Gid& local, const Gid& remote,
                      const std::byte* bytes, size_t length) {
  core_->OnMad(now, nic, {local, remote}, bytes, length);
}

void CmService::OnTimeout(Instant now) { core_->OnTimeout(now); }

bool CmService::PollMad(OutMad* out) { return core_->PollMad(out); }

bool CmService::PollChannel(ChannelState* out) { return core_->PollChannel(out); }

void CmService::OnSenderConnected(Instant now, uint32_t nic, uint32_t comm, int error) {
  core_->OnSenderConnected(now, nic, comm, error);
}
bool CmService::PollLaneOrder(LaneOrder* out) { return core_->PollLaneOrder(out); }

void CmService::OnLaneMade(Instant now, uint32_t nic, uint32_t comm, const LaneAnswer& answer) {
  core_->OnLaneMade(now, nic, comm, answer);
}

void CmService::OnLaneEnded(Instant now, LaneId lane) { core_->OnLaneEnded(now, lane); }

bool CmService::PollLookUp(LookUp* out) { return core_->PollLookUp(out); }

void CmService::OnLookedUp(const LookUp& what, int error) { core_->OnLookedUp(what, error); }

void CmService::WithdrawLookUp(const LookUp& what) { core_->WithdrawLookUp(what); }

Instant CmService::PollTimeout() const { return core_->PollTimeout(); }

std::vector<CmService::SessionRow> CmService::Show() const { return core_->Show(); }

CmCounters CmService::Counters() const { return core_->Counters(); }

}  // namespace verbena::softnic
