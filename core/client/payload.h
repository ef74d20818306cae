// The program's memory that the NIC maps, too: whole pages of a region to be registered become,
// where they are, pages of a payload file. Contents and addresses stay; the program notices
// nothing.
//
// Not everything may be converted: see MayConvert in payload.cc. What is not stays the program's
// alone, and the NIC reaches it by system calls.
//
// Thread: every function may be called from many threads at once.
// Fork:   a child gets a private copy of what was converted, as it does of all else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shm/command.h"

namespace verbena::client {

class Session;

// A payload file of a daemon, as this process has it; its sessions with that daemon share it.
struct PayloadFile;

// A region that is registered, or about to be: until it is not any more, what of it is not shared
// must not be converted, since the NIC may be writing to it.
struct Registration {
  Registration() = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

  uintptr_t begin = 0, end = 0;
  Registration* previous = nullptr;
  Registration* next = nullptr;
  bool is_held = false;
};

enum class Sharing {
  kWhereSafe,
  // The user says so: every byte, or the registration fails. What other threads write meanwhile to
  // pages of the region may be lost.
  kAll,
};

// Shares what it can of the request's range, and says in the request what is shared.
// Errors: EOPNOTSUPP: with kAll, not all can be.
int ShareForRegistration(Session* session, Sharing sharing, Registration* registration,
                         shm::RegMrRequest* request);

namespace internal {

// Takes the fd: 0 or errno. For who has a payload file from elsewhere than a session.
int AdoptPayload(uint64_t id, int fd, PayloadFile** out);
// One that is known by its id, with one session more; nullptr: none.
PayloadFile* FindPayload(uint64_t id);
void ReleasePayload(PayloadFile* file);
uint32_t KnownPayloads(uint64_t* ids, uint32_t max);
// `file` may be nullptr: nothing is shared then.
int ShareRange(PayloadFile* file, Sharing sharing, Registration* registration,
               shm::RegMrRequest* request);
// What the safety rules say of this process now.
bool MayConvert();

}  // namespace internal

}  // namespace verbena::client
