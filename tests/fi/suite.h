// The cases of the suite, and what each may answer.
//
// A case is a function that returns when the promise is kept, and leaves by one of the functions
// below when it is not. It runs in a process of its own, so that a provider's crash is an answer as
// well.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>

#include <functional>
#include <string>
#include <vector>

namespace verbena::fi_test {

// Crashed and hung processes answer kCrashed and kHung, by the runner.
enum class Verdict { kYes, kNo, kRefused, kNotApplicable, kCrashed, kHung };

struct Answer {
  Verdict verdict = Verdict::kYes;
  std::string reason;
};

// The promise is broken: what was seen instead.
[[noreturn]] void Fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Not offered, and said so with the error that the man page has for it.
[[noreturn]] void Refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The promise says nothing about this provider's endpoints.
[[noreturn]] void DoesNotApply(const char* format, ...) __attribute__((format(printf, 1, 2)));
void Expect(bool condition, const char* format, ...) __attribute__((format(printf, 2, 3)));
// A figure that goes along with a yes.
void Note(const char* format, ...) __attribute__((format(printf, 1, 2)));

// "-FI_EAGAIN", for messages.
std::string NameOf(long error);
// Success, or the end of the case: refused where the error says "not supported", otherwise no.
void Need(long result, const char* what);
// Exactly this error (negative).
void ExpectError(long result, long error, const char* what);

enum Endpoints : unsigned {
  kMsg = 1,
  kRdm = 2,
  kDgram = 4,
  kReliable = 3,
  kAddressed = 6,
  kAll = 7,
  kOnce = 8
};  // kOnce: about no endpoint type; asked of the first one

// An endpoint type by the name that the command lines here have for it.
struct EndpointType {
  const char* name;
  fi_ep_type type;
  unsigned endpoints;
};
inline constexpr EndpointType kEndpointTypes[] = {
    {"msg", FI_EP_MSG, kMsg}, {"rdm", FI_EP_RDM, kRdm}, {"dgram", FI_EP_DGRAM, kDgram}};
// nullptr: there is none of this name.
const EndpointType* FindEndpointType(const std::string& name);

struct Case {
  std::string name;
  unsigned endpoints;
  std::function<void()> run;
  unsigned limit_s = 10;
};

std::vector<Case>& Cases();

struct Registration {
  Registration(std::string name, std::function<void()> run, unsigned endpoints,
               unsigned limit_s = 10);
};

// FI_CASE("domain.open", kOnce) { ... }; a third argument is its time limit in seconds.
#define FI_CASE(name, ...) FI_CASE_AT(__LINE__, name, __VA_ARGS__)
#define FI_CASE_AT(line, name, ...) FI_CASE_OF(line, name, __VA_ARGS__)
#define FI_CASE_OF(line, name, ...)                                                            \
  static void Case##line();                                                                    \
  [[maybe_unused]] static const ::verbena::fi_test::Registration kCase##line(name, Case##line, \
                                                                             __VA_ARGS__);     \
  static void Case##line()

// Who is asked.
struct Target {
  std::string provider;
  fi_ep_type type = FI_EP_UNSPEC;
  std::string node;  // source address of every endpoint; "": what fi_getinfo lists first
};
const Target& Asked();
void Ask(const Target& target);

// Of a handle that goes before what uses it: only LeakSanitizer asks whether it can be closed then.
void CloseLater(fid* busy);

// How many times longer than on a quiet machine what hangs is waited for.
int Patience();
void SetPatience(int times);

// In a child of a case's process, whose answer is not the case's: it throws an Answer.
void BeAnother();

// The case in a child of this process.
Answer RunIsolated(const Case& test);

}  // namespace verbena::fi_test
