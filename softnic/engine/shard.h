// The shard: one loop that polls doorbells, drives the device, copies payload, and sleeps well.
//
// Thread: whichever thread of the crew leads; Post, Stop and counters: any.
//
// Wake-up policy: spin for 50 to 200 µs after the last work, but hardly, or not at all, if a
// recently active client last ran on this CPU (spin_policy.h). Then say "sleeping", look once more,
// and wait in epoll. Clients that were active just before are polled again from the moment of
// waking.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/instant.h"
#include "core/base/sched_attr.h"
#include "softnic/device/device.h"
#include "softnic/dma/crew.h"
#include "softnic/dma/process_dma.h"
#include "softnic/engine/client_port.h"
#include "softnic/engine/cpu_contention.h"
#include "softnic/engine/mailbox.h"
#include "softnic/engine/network_looks.h"
#include "softnic/engine/run_delay.h"
#include "softnic/engine/spin_policy.h"
#include "softnic/engine/yield_policy.h"
#include "transport/port/packet_port.h"

namespace verbena::softnic {

struct ShardCounters {
  uint64_t turns = 0;
  uint64_t sleeps = 0;
  uint64_t wakeups = 0;       // sleeps ended by a client or the control thread, not by time
  uint64_t spins = 0;         // turns that found nothing to do
  uint64_t short_spins = 0;   // sleeps taken early for a client on the same CPU
  uint64_t yields = 0;        // of the CPU, without a sleep
  uint64_t late_yields = 0;   // of them, those after which others kept it for long
  uint64_t thread_rings = 0;  // found in the doorbell pages of thread domains
  uint64_t takeovers = 0;     // leaders deposed because a copy hung
};

class Shard {
 public:
  Shard(Device* device, ProcessDma* dma, CopyCrew* crew);
  ~Shard();

  // False, with errno, if the kernel refuses what the loop needs.
  bool Open();
  void Start();
  // False: some thread hangs in a client's memory; the process can only exit.
  bool Stop(int wait_ms);

  // Runs `closure` on the leader, between turns.
  void Post(std::function<void()> closure);
  ShardCounters counters() const;

  // --- leader -----------------------------------------------------------------------------------
  // False: the kernel refuses (errno); the port is not polled then.
  bool AddPort(ClientPort* port);
  void RemovePort(ClientPort* port);
  // `port` is attached to the device already; the shard wakes for its packets. False: the kernel
  // refuses (errno).
  bool AddNetwork(transport::PacketPort* port);
  void RemoveNetwork(transport::PacketPort* port);
  Instant now() const { return now_; }
  // An event did not fit its fd: FlushEvents is due.
  void RequestFlush() { flush_due_ = true; }
  // Called with a port whose client lied; it is polled no more.
  void SetOnHostile(std::function<void(ClientPort*)> callback) { on_hostile_ = callback; }
  // `gone` on the leader once the closed session's memory is nobody's business any more.
  void WhenGone(SessionId session, std::function<void()> gone);
  // `done(error, word)` on the leader once the probe is done; see ProcessDma::SubmitProbe.
  void Probe(SessionId session, uint64_t addr, uint64_t bytes, bool by_helper,
             std::function<void(int, uint64_t)> done);

 private:
  struct PendingProbe {
    std::function<void(int, uint64_t)> done;
    bool is_used = false;
  };

  void Lead(CopyThread& me);
  bool Turn(CopyThread& me, bool* worked);  // false: deposed
  void RunMailbox();
  bool DeliverDma();
  bool PollNetworks(bool has_rung);
  // Nothing comes or goes by a network; or there is none.
  bool IsNetworkQuiet() const { return networks_.empty() || network_looks_.IsQuiet(now_); }
  bool RunTimers();
  void ReapClosed();

  // The leader alone counts; others only look.
  static void Count(std::atomic<uint64_t>& counter, uint64_t events = 1) {
    counter.store(counter.load(std::memory_order_relaxed) + events, std::memory_order_relaxed);
  }

  // doorbells.cc
  bool PollPorts();
  bool PollPort(ClientPort* port);
  void NoteCpu(ClientPort* port);
  uint32_t ServeCommands(ClientPort* port, uint32_t budget);
  uint32_t GatherRung(DoorbellScan& doorbells, uint32_t budget);
  void ServeRung(ClientPort* port);
  void ServeCommand(ClientPort* port, uint32_t slot);
  void PassCommand(ClientPort* port, uint32_t slot, uint32_t submitted,
                   const shm::CommandRequest& request);
  void Quarantine(ClientPort* port);
  void Suspend(ClientPort* port);
  void EndSuspensions();
  bool ListenTo(ClientPort* port, int epoll_operation);
  void Park(ClientPort* port);
  void Unpark(ClientPort* port);
  void Poll(ClientPort* port);
  void RunDevice();
  bool HasWorkLeft() const;

  // sleep.cc
  // How long the shard waits for work: for `quiet` it spins, from then on it gives its CPU away,
  // and after `limit` it sleeps.
  struct Wait {
    Duration quiet, limit;
    bool shares_cpu;
  };
  Wait WaitForWork();
  void Yield();
  void EndYields(bool shares_cpu);
  void TakeTurns(uint64_t turn_ns);
  void TellCpu();
  void Sleep(bool shares_cpu);
  bool HasNews();
  void LookForRivals();
  void UnparkRecent();
  void WaitForEvents(bool may_block);
  Instant NextDeadline() const;
  void ArmTimer(Instant due);
  void PollParked();

  Device* device_;
  ProcessDma* dma_;
  CopyCrew* crew_;
  int epoll_ = -1;
  int wake_event_ = -1;
  int timer_ = -1;
  Instant timer_due_ = Instant::Never();  // of the timer, until its event was taken
  Mailbox mailbox_;
  std::vector<std::function<void()>> closures_;
  std::function<void(ClientPort*)> on_hostile_;

  std::vector<transport::PacketPort*> networks_;
  NetworkLooks network_looks_;
  bool skipped_networks_ = false;    // in the last turn
  std::vector<ClientPort*> ports_;   // all; index by ClientPort::index
  std::vector<ClientPort*> active_;  // not parked
  std::vector<ClientPort*> recent_;  // rang within the last millisecond, parked or not
  std::vector<ClientPort*> scratch_;
  std::vector<uint32_t> rung_;  // doorbells of the client being polled
  struct Suspension {
    ClientPort* port;
    Instant until;
  };
  std::vector<Suspension> suspended_;
  struct Closing {
    SessionId session;
    std::function<void()> gone;
  };
  std::vector<Closing> closing_;

  Instant now_{0};
  ClientPort* rang_last_ = nullptr;
  uint32_t slept_on_cpu_ = 0;  // the last time
  uint32_t polls_on_cpu_ = UINT32_MAX;
  Instant idle_since_{0};
  bool was_idle_ = false;
  Instant last_parked_poll_{0};
  Instant next_flush_{0};
  Duration flush_backoff_{0};
  bool flush_due_ = false;
  bool device_busy_ = false;
  bool ports_busy_ = false;  // doorbells taken in the last turn wait for the next

  std::vector<PendingProbe> pending_probes_;
  std::vector<uint32_t> free_probes_;

  std::atomic<bool> is_asleep_{false};
  std::atomic<bool> attention_{false};
  SpinTimes spin_times_;
  CpuContention contention_;
  RunDelay run_delay_;  // of the thread that leads
  YieldPolicy yield_policy_;
  uint64_t turn_ns_ = kShortTurnNs;  // of the thread that leads
  Instant awake_since_;
  std::atomic<uint64_t> turns_{0}, sleeps_{0}, wakeups_{0}, spins_{0}, short_spins_{0}, yields_{0},
      late_yields_{0}, thread_rings_{0};
};

}  // namespace verbena::softnic
