// The helper: moves bytes between this process's memory and a staging area that the NIC has, where
// the NIC can't reach the memory by itself (docs/adr/0014).
//
// It is a process that shares our address space, and nothing else: no thread of the program's, no
// child that wait() reports, with no signals and no copies of the program's fds. It goes on while
// the program is stopped, and ends with the daemon's end of its socket, the program, or StopHelper.
//
// Fork: a child has no helper, nor its memory; it calls ForgetHelper.
#pragma once

#include <sys/types.h>

namespace verbena::client {

struct Helper;

// Takes both fds, whatever comes of it: the file of core/shm/assist.h, and the client's end of the
// socket. Errors: ENOMEM; EMFILE; EOPNOTSUPP: not to be had here (the system refuses such a
// process, or what it needs).
int StartHelper(int area_fd, int socket_fd, Helper** out);
// When it returns, nothing touches this process's memory any more, and no child is left.
void StopHelper(Helper* helper);
void ForgetHelper(Helper* helper);
// Of the helper, for tests.
pid_t HelperPid(const Helper* helper);

// Whether this process can have one: 0 or errno, as tried.
int TryHelper();

}  // namespace verbena::client
