// One attached client on the control thread: from Hello to the last trace of its session.
//
// Attaching goes control → leader (open the session, probe its memory) → control (Welcome). Ending,
// by EOF, by the process's death or by a lie, goes control → leader (close, wait until no copy
// touches the client's memory) → control (free everything).
//
// A process that ends while somebody else holds its socket (who imports its context, or will)
// leaves what can be imported until the last holder is gone.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "core/shm/attach.h"
#include "softnic/control/client_session.h"
#include "softnic/control/server.h"

namespace verbena::softnic {

class AttachedClient : public std::enable_shared_from_this<AttachedClient> {
 public:
  AttachedClient(ControlServer* server, pid_t pid);
  ~AttachedClient();

  // 0 or errno: then nothing of the client is left. `joins`: a client whose context it imports.
  int Start(UniqueFd socket, const shm::Hello& hello, const AttachedClient* joins);
  void End(const std::string& why);
  void SetStopping() { session_->SetStopping(); }
  SessionId id() const { return id_; }

 private:
  void OpenOnLeader(const shm::Hello& hello, SessionId joins);
  static void HandBack(std::shared_ptr<AttachedClient> self,
                       const shm::Welcome& welcome);  // leader
  void OnAttached(const shm::Welcome& welcome);       // control
  void Watch();
  void Import(UniqueFd socket, const shm::Hello& hello);
  void WatchAfterPause();
  void WatchProcess();
  bool IsHeld();
  void AbandonOnLeader();
  void CloseOnLeader();

  ControlServer* server_;
  pid_t pid_;
  std::string program_;
  uint32_t nic_ = 0;
  boost::asio::posix::stream_descriptor watched_socket_;
  boost::asio::posix::stream_descriptor pidfd_;
  boost::asio::steady_timer import_pause_;
  std::unique_ptr<ClientSession> session_;
  SessionId id_ = 0;          // 0 until attached
  bool is_attached_ = false;  // the leader has handed back
  bool is_ended_ = false;
  bool is_closing_ = false;
  bool is_process_dead_ = false;
  bool is_abandoned_ = false;  // the leader polls it no more
};

}  // namespace verbena::softnic
