// The fds that stand for open rdma_cm files, and the channels behind them.
//
// An fd is known by its number and by the socket that it is: a program may close it where nobody
// here sees it (close_range, a system call of its own), and the number is another file's then.
//
// Thread: any number of them; nothing is locked for fds that are not ours.
#pragma once

#include <sys/types.h>

#include "verbs_shim/ucm/commands.h"

namespace verbena::ucm {

// Higher fds are refused with EMFILE.
inline constexpr int kFdsMax = 1 << 16;

bool MayBeOurs(int fd);
// Opens /dev/infiniband/rdma_cm with `flags` of open(2). The fd, or -1 and errno: those of
// client::CmSession, EMFILE, ENOMEM.
int OpenFile(int flags);
// Whether the fd is one of ours, and whose; so it is in a forked child, where the daemon does not
// answer any more.
bool FindChannel(int fd, Channel* out);
// A command, as write(2) has it: `bytes`, or -1 and errno.
ssize_t WriteFile(const Channel& channel, int fd, const void* data, size_t bytes);
// `fd` is about to be closed: with the last of its file's, that is closed.
void ForgetFd(int fd);
// `copy` is a duplicate of `fd`, made just now.
void NoteDuplicate(int fd, int copy);
// What stat(2) says of the device: the number that the kernel's has, where there is one.
dev_t DeviceNumber();

}  // namespace verbena::ucm
