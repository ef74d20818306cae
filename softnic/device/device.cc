#include "softnic/device/device.h"

#include "softnic/device/device_core.h"

namespace verbena::softnic {

struct Device::Impl {
  Impl(DeviceConfig config, DmaEngine* dma) : core(std::move(config), dma, MakeTransport) {}
  DeviceCore core;
};

Device::Device(DeviceConfig config, DmaEngine* dma)
    : impl_(std::make_unique<Impl>(std::move(config), dma)) {}
Device::~Device() = default;

void Device::AddNic(const NicConfig& nic) { impl_->core.AddNic(nic); }
std::vector<shm::NicInfo> Device::ListNics() const { return impl_->core.ListNics(); }

SessionId Device::OpenSession(uint32_t nic, std::string program, int pid, SessionServices* services,
                              SessionId joins) {
  return impl_->core.OpenSession(nic, std::move(program), pid, services, joins);
}
void Device::AbandonSession(Instant now, SessionId session) {
  impl_->core.AbandonSession(now, session);
}
void Device::CloseSession(Instant now, SessionId session) {
  impl_->core.CloseSession(now, session);
}
bool Device::SessionIsGone(SessionId session) const { return impl_->core.SessionIsGone(session); }

void Device::OnCommand(Instant now, SessionId session, uint32_t slot, uint32_t submitted,
                       const shm::CommandRequest& request) {
  impl_->core.OnCommand(now, session, slot, submitted, request);
}
bool Device::OnDoorbell(Instant now, SessionId session, uint32_t doorbell) {
  return impl_->core.OnDoorbell(now, session, doorbell);
}
uint32_t Device::OnDoorbells(Instant now, SessionId session, const uint32_t* doorbells,
                             uint32_t count) {
  return impl_->core.OnDoorbells(now, session, doorbells, count);
}
void Device::ExpectDoorbell(SessionId session, uint32_t doorbell) const {
  impl_->core.ExpectDoorbell(session, doorbell);
}
void Device::OnDmaDone(Instant now, uint64_t cookie, transport::DmaStatus status,
                       uint64_t atomic_original, DmaFault fault) {
  impl_->core.OnDmaDone(now, cookie, status, atomic_original, fault);
}
void Device::OnDmaFence(Instant now, uint64_t cookie) { impl_->core.OnDmaFence(now, cookie); }
void Device::OnTimeout(Instant now) { impl_->core.OnTimeout(now); }
void Device::FlushEvents() { impl_->core.FlushEvents(); }

bool Device::Run(Instant now, uint32_t max_pdus) { return impl_->core.Run(now, max_pdus); }
void Device::AttachPort(uint32_t nic, transport::PacketPort* port) {
  impl_->core.AttachPort(nic, port);
}
bool Device::PollPorts(Instant now, uint32_t max_packets) {
  return impl_->core.PollPorts(now, max_packets);
}
bool Device::FlushPorts(Instant now) { return impl_->core.FlushPorts(now); }
bool Device::ExpectsPackets() const { return impl_->core.ExpectsPackets(); }
bool Device::PreparePortsToSleep() { return impl_->core.PreparePortsToSleep(); }
void Device::SetMadHandler(MadHandler handler) { impl_->core.SetMadHandler(std::move(handler)); }
int Device::SendMad(Instant now, uint32_t nic, const Gid& sgid, const Gid& dgid,
                    const std::byte* bytes, size_t length) {
  return impl_->core.SendMad(now, nic, sgid, dgid, bytes, length);
}
LaneAnswer Device::MakeLane(Instant now, const LaneRequest& request) {
  return impl_->core.MakeLane(now, request);
}
int Device::ConnectSender(Instant now, const LaneSender& sender) {
  return impl_->core.ConnectSender(now, sender);
}
void Device::DropLane(Instant now, LaneId lane) { impl_->core.DropLane(now, lane); }
void Device::SetLaneEndHandler(LaneEndHandler handler) {
  impl_->core.SetLaneEndHandler(std::move(handler));
}
void Device::SetPortState(Instant now, uint32_t nic, bool is_up) {
  impl_->core.SetPortState(now, nic, is_up);
}
void Device::SetPortMtu(uint32_t nic, uint32_t mtu_bytes) {
  impl_->core.SetPortMtu(nic, mtu_bytes);
}
uint32_t Device::InjectEvent(Instant now, const std::string& name, const EventTarget& target,
                             std::string* error) {
  return impl_->core.InjectEvent(now, name, target, error);
}
std::string Device::DescribePacket(uint32_t nic, const transport::wire::PacketAddress& address,
                                   const transport::Pdu& pdu, bool is_sent) const {
  return impl_->core.DescribePacket(nic, address, pdu, is_sent);
}
Qpn Device::SourceQpnOf(uint32_t nic, const transport::wire::PacketAddress& address,
                        const transport::Pdu& pdu, bool is_sent) const {
  return impl_->core.SourceQpnOf(nic, address, pdu, is_sent);
}
std::vector<NicStatus> Device::ListNicStatuses() const { return impl_->core.ListNicStatuses(); }
Instant Device::PollTimeout() const { return impl_->core.PollTimeout(); }
std::vector<ShowRow> Device::Show(ShowKind kind) const { return impl_->core.Show(kind); }
DeviceStats Device::Stats() const { return impl_->core.Stats(); }
DeviceUsage Device::Usage() const { return impl_->core.Usage(); }

}  // namespace verbena::softnic
