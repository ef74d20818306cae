// fi_cq(3), fi_cntr(3), fi_poll(3): completions, counters and how to wait for them.
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include <atomic>
#include <thread>

#include "tests/fi/fabric.h"
#include "tests/fi/waiting.h"

namespace verbena::fi_test {
namespace {

void Format(fi_cq_format format) {
  Wish wish;
  wish.format = format;
  Pair pair(wish);
  Memory out(pair.a(), 77), in(pair.b(), 77);
  OneMessage(pair, out, in);
  const Completion got = Await(pair.b().rx_cq, "the receive", format);
  Expect(got.context == ContextOf(1), "another context");
  if (format != FI_CQ_FORMAT_CONTEXT) {
    Expect(got.len == 77 && (got.flags & FI_RECV) != 0, "len %zu, flags %#llx", got.len,
           static_cast<unsigned long long>(got.flags));
  }
}
FI_CASE("cq.format_context", kAll) { Format(FI_CQ_FORMAT_CONTEXT); }
FI_CASE("cq.format_msg", kAll) { Format(FI_CQ_FORMAT_MSG); }
FI_CASE("cq.format_data", kAll) { Format(FI_CQ_FORMAT_DATA); }
FI_CASE("cq.format_tagged", kAll) { Format(FI_CQ_FORMAT_TAGGED); }

FI_CASE("cq.several_at_once", kAll) {
  Wish wish;
  wish.format = FI_CQ_FORMAT_MSG;
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  for (int i = 0; i < 8; ++i) Receive(pair.b(), in, i);
  for (int i = 0; i < 8; ++i) {
    Send(pair.a(), out, 8 + i);
    Await(pair.a().tx_cq, "a send", FI_CQ_FORMAT_MSG);
  }
  fi_cq_msg_entry entries[16] = {};
  size_t got = 0;
  bool had_many = false;
  // Gathers without reading, then reads more than one in a call.
  WaitUntil([] { return false; }, 200);
  WaitUntil([&] {
    const ssize_t now = fi_cq_read(pair.b().rx_cq, entries + got, 3);
    Expect(now <= 3, "%zd entries where 3 were asked for", now);
    if (now > 1) had_many = true;
    if (now > 0) got += now;
    return got == 8;
  });
  Expect(got == 8, "%zu of 8", got);
  Expect(had_many, "never more than one in a call");
  for (int i = 0; i < 8; ++i) Expect(entries[i].op_context == ContextOf(i), "another order");
}

FI_CASE("cq.empty", kAll) {
  Ground ground;
  const Fid<fid_cq> cq = OpenCq(ground.domain);
  fi_cq_data_entry entry;
  fi_cq_err_entry error = {};
  ExpectError(fi_cq_read(cq, &entry, 1), -FI_EAGAIN, "reading an empty CQ");
  ExpectError(fi_cq_readerr(cq, &error, 0), -FI_EAGAIN, "reading an error that is not there");
}

FI_CASE("cq.size", kAll) {
  Ground ground;
  for (const size_t size : {1UL, 100UL, 5000UL}) {
    fi_cq_attr attr = {};
    attr.size = size;
    const Fid<fid_cq> cq = OpenCq(ground.domain, attr);
    Expect(cq->fid.fclass == FI_CLASS_CQ, "class %zu", cq->fid.fclass);
  }
}

FI_CASE("cq.bad_attributes", kAll) {
  Ground ground;
  const auto open = [&](fi_cq_attr attr) {
    Fid<fid_cq> cq;
    return fi_cq_open(ground.domain, &attr, cq.Out(), nullptr);
  };
  fi_cq_attr attr = {};
  attr.format = static_cast<fi_cq_format>(99);
  Expect(open(attr) < 0, "format 99 is accepted");
  attr = {};
  attr.wait_obj = static_cast<fi_wait_obj>(99);
  Expect(open(attr) < 0, "wait object 99 is accepted");
  attr = {};
  attr.flags = 1ULL << 62;
  Expect(open(attr) < 0, "an unknown flag is accepted");
  attr = {};
  attr.wait_obj = FI_WAIT_SET;
  Expect(open(attr) < 0, "FI_WAIT_SET without a set is accepted");
}

FI_CASE("cq.peer_is_refused_or_works", kOnce) {
  Ground ground;
  fi_cq_attr attr = {};
  attr.flags = FI_PEER;
  Fid<fid_cq> cq;
  const int result = fi_cq_open(ground.domain, &attr, cq.Out(), nullptr);
  Expect(result < 0, "FI_PEER without a peer is accepted");
  Note("%s", NameOf(result).c_str());
}

FI_CASE("cq.affinity", kAll) {
  Ground ground;
  fi_cq_attr attr = {};
  attr.flags = FI_AFFINITY;
  attr.signaling_vector = 0;
  attr.wait_obj = FI_WAIT_UNSPEC;
  const Fid<fid_cq> cq = OpenCq(ground.domain, attr);
}

// --- waiting -----------------------------------------------------------------------------------

int WaitFd(fid* object) {
  int fd = -1;
  Need(fi_control(object, FI_GETWAIT, &fd), "FI_GETWAIT");
  Expect(fd >= 0, "no descriptor");
  return fd;
}

FI_CASE("cq.wait_fd", kAll) {
  Pair pair(Waiting(FI_WAIT_FD));
  const int fd = WaitFd(pair.b().rx_cq.Base());
  Memory out(pair.a(), 64), in(pair.b(), 64);
  for (int round = 0; round < 20; ++round) {
    Receive(pair.b(), in, 1);
    fid* object = pair.b().rx_cq.Base();
    const int may_wait = fi_trywait(pair.b().fabric, &object, 1);
    Expect(may_wait == 0, "fi_trywait of an empty CQ: %s", NameOf(may_wait).c_str());
    std::thread sender([&] {
      Send(pair.a(), out, 2);
      while (!PollCq(pair.a().tx_cq)) {
      }
    });
    // Manual progress happens in fabric calls: fi_trywait, and a look.
    bool is_awake = false;
    for (int i = 0; i < 400 && !is_awake; ++i) {
      is_awake = IsReadable(fd, 10);
      if (!is_awake) is_awake = fi_trywait(pair.b().fabric, &object, 1) == -FI_EAGAIN;
    }
    sender.join();
    Expect(is_awake, "round %d: the descriptor is not readable", round);
    Await(pair.b().rx_cq, "the receive");
  }
}

FI_CASE("cq.wait_fd_empty_is_quiet", kAll) {
  Pair pair(Waiting(FI_WAIT_FD));
  const int fd = WaitFd(pair.b().rx_cq.Base());
  Memory out(pair.a(), 64), in(pair.b(), 64);
  OneMessage(pair, out, in);
  Await(pair.b().rx_cq, "the receive");
  Await(pair.a().tx_cq, "the send");
  fid* object = pair.b().rx_cq.Base();
  bool is_quiet = false;
  for (int i = 0; i < 5 && !is_quiet; ++i) {
    is_quiet = fi_trywait(pair.b().fabric, &object, 1) == 0 && !IsReadable(fd, 20);
  }
  Expect(is_quiet, "the descriptor stays readable with nothing to read");
}

void SreadWakes(fi_wait_obj wait) {
  Pair pair(Waiting(wait));
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in, 1);
  std::thread sender([&] {
    Send(pair.a(), out, 2);
    while (!PollCq(pair.a().tx_cq)) {
    }
  });
  fi_cq_data_entry entry = {};
  const long begin_ms = NowMs();
  ssize_t got = -FI_EAGAIN;
  while (got == -FI_EAGAIN && NowMs() - begin_ms < 4000) {
    got = fi_cq_sread(pair.b().rx_cq, &entry, 1, nullptr, 3000);
  }
  sender.join();
  if (got < 0) Need(got, "fi_cq_sread");
  Expect(got == 1 && entry.op_context == ContextOf(1), "fi_cq_sread: %zd", got);
}
FI_CASE("cq.sread_unspec", kAll) { SreadWakes(FI_WAIT_UNSPEC); }
FI_CASE("cq.sread_fd", kAll) { SreadWakes(FI_WAIT_FD); }
FI_CASE("cq.sread_mutex_cond", kAll) { SreadWakes(FI_WAIT_MUTEX_COND); }
FI_CASE("cq.sread_yield", kAll) { SreadWakes(FI_WAIT_YIELD); }

FI_CASE("cq.getwait_mutex_cond", kAll) {
  Ground ground;
  fi_cq_attr attr = {};
  attr.wait_obj = FI_WAIT_MUTEX_COND;
  const Fid<fid_cq> cq = OpenCq(ground.domain, attr);
  fi_mutex_cond pair = {};
  Need(fi_control(cq.Base(), FI_GETWAIT, &pair), "FI_GETWAIT");
  Expect(pair.mutex != nullptr && pair.cond != nullptr, "no mutex or condition");
  Expect(pthread_mutex_lock(pair.mutex) == 0 && pthread_mutex_unlock(pair.mutex) == 0,
         "the mutex can't be locked");
}

FI_CASE("cq.sread_timeout", kAll) {
  Pair pair(Waiting(FI_WAIT_UNSPEC));
  fi_cq_data_entry entry;
  for (const int timeout_ms : {0, 60}) {
    const long begin_ms = NowMs();
    ExpectError(fi_cq_sread(pair.b().rx_cq, &entry, 1, nullptr, timeout_ms), -FI_EAGAIN,
                "fi_cq_sread with nothing to read");
    Expect(NowMs() - begin_ms >= timeout_ms - 1, "back after %ld of %d ms", NowMs() - begin_ms,
           timeout_ms);
  }
}

FI_CASE("cq.sread_without_wait_object", kAll) {
  Ground ground;
  const Fid<fid_cq> cq = OpenCq(ground.domain);
  fi_cq_data_entry entry;
  const ssize_t result = fi_cq_sread(cq, &entry, 1, nullptr, 10);
  Expect(result < 0 && result != -FI_EAGAIN, "FI_WAIT_NONE, and fi_cq_sread says %s",
         NameOf(result).c_str());
}

FI_CASE("cq.signal", kAll) {
  Pair pair(Waiting(FI_WAIT_UNSPEC));
  std::atomic<long> result = 1;
  std::thread waiter([&] {
    fi_cq_data_entry entry;
    result = fi_cq_sread(pair.b().rx_cq, &entry, 1, nullptr, -1);
  });
  // A signal before the wait may or may not count: until the waiter has gone, again.
  const bool is_back = WaitUntil(
      [&] {
        const int signalled = fi_cq_signal(pair.b().rx_cq);
        if (signalled == -FI_ENOSYS) return true;
        return result != 1;
      },
      3000);
  if (result == 1) {
    Expect(!is_back, "fi_cq_signal: -FI_ENOSYS");
    Fail("fi_cq_signal does not wake fi_cq_sread");
  }
  waiter.join();
  ExpectError(result, -FI_EAGAIN, "a signalled fi_cq_sread");
}

FI_CASE("cq.signal_with_entries", kAll) {
  Pair pair(Waiting(FI_WAIT_UNSPEC));
  Memory out(pair.a(), 64), in(pair.b(), 64);
  Receive(pair.b(), in, 1);
  Send(pair.a(), out);
  Await(pair.a().tx_cq, "the send");
  fi_cq_data_entry entry = {};
  ssize_t got = -FI_EAGAIN;
  WaitUntil([&] {  // it may still be on its way, and a signal ends the wait for it at once
    Need(fi_cq_signal(pair.b().rx_cq), "fi_cq_signal");
    got = fi_cq_sread(pair.b().rx_cq, &entry, 1, nullptr, 100);
    return got != -FI_EAGAIN;
  });
  Expect(got == 1 && entry.op_context == ContextOf(1), "a signal hides what waits: %s",
         NameOf(got).c_str());
}

FI_CASE("cq.signal_without_wait_object", kAll) {
  Ground ground;
  const Fid<fid_cq> cq = OpenCq(ground.domain);
  Expect(fi_cq_signal(cq) < 0, "it is accepted");
}

FI_CASE("cq.threshold", kAll) {
  Wish wish = Waiting(FI_WAIT_UNSPEC);
  Pair pair(wish);
  fi_cq_attr attr = {};
  attr.wait_obj = FI_WAIT_UNSPEC;
  attr.wait_cond = FI_CQ_COND_THRESHOLD;
  const Fid<fid_cq> cq = OpenCq(pair.a().domain, attr);
  fi_cq_data_entry entries[4];
  ExpectError(fi_cq_sread(cq, entries, 4, reinterpret_cast<void*>(size_t{2}), 20), -FI_EAGAIN,
              "fi_cq_sread with a threshold");
}

FI_CASE("cq.sreadfrom_source", kAddressed) {
  Wish wish = Waiting(FI_WAIT_UNSPEC);
  wish.caps = FI_MSG | FI_SOURCE;
  Pair pair(wish);
  Memory out(pair.a(), 64), in(pair.b(), 64);
  OneMessage(pair, out, in);
  fi_cq_data_entry entry;
  fi_addr_t source = 0;
  ssize_t got = 0;
  WaitUntil([&] {
    return (got = fi_cq_sreadfrom(pair.b().rx_cq, &entry, 1, &source, nullptr, 100)) != -FI_EAGAIN;
  });
  Expect(got == 1 && source == pair.b().other, "source %#llx",
         static_cast<unsigned long long>(source));
}

FI_CASE("cq.source_not_available", kAll) {
  Pair pair;  // without FI_SOURCE
  Memory out(pair.a(), 64), in(pair.b(), 64);
  OneMessage(pair, out, in);
  const Completion got = Await(pair.b().rx_cq, "the receive");
  Expect(got.source == FI_ADDR_NOTAVAIL, "a source without FI_SOURCE");
}

// --- errors ------------------------------------------------------------------------------------

FI_CASE("cq.error_blocks_reading", kReliable) {
  Wish wish = {.caps = FI_MSG};
  Pair pair(wish);
  Memory in(pair.b(), 64);
  Receive(pair.b(), in, 4);
  Need(fi_cancel(pair.b().ep.Base(), ContextOf(4)), "fi_cancel");
  fi_cq_data_entry entry;
  ssize_t got = 0;
  WaitUntil([&] { return (got = fi_cq_read(pair.b().rx_cq, &entry, 1)) != -FI_EAGAIN; });
  ExpectError(got, -FI_EAVAIL, "reading a CQ that holds an error");
  ExpectError(fi_cq_read(pair.b().rx_cq, &entry, 1), -FI_EAVAIL, "reading it again");
  fi_cq_err_entry error = {};
  Expect(fi_cq_readerr(pair.b().rx_cq, &error, 0) == 1 && error.err == FI_ECANCELED, "%s",
         NameOf(error.err).c_str());
  ExpectError(fi_cq_read(pair.b().rx_cq, &entry, 1), -FI_EAGAIN, "reading it afterwards");
}

FI_CASE("cq.strerror", kReliable) {
  Pair pair({.caps = FI_MSG | FI_RMA});
  MakeError(pair);
  fi_cq_err_entry error = {};
  Expect(fi_cq_readerr(pair.a().tx_cq, &error, 0) == 1, "fi_cq_readerr");
  char text[200] = "";
  const char* said =
      fi_cq_strerror(pair.a().tx_cq, error.prov_errno, error.err_data, text, sizeof(text));
  Expect(said != nullptr && said[0] != 0, "no text");
  Note("\"%s\"", said);
}

FI_CASE("max_err_data.reported", kAll) {
  const Info info = GetInfo({});
  if (info->domain_attr->max_err_data == 0) Refuse("max_err_data 0");
  Note("%zu", info->domain_attr->max_err_data);
}

FI_CASE("max_err_data.into_own_buffer", kReliable) {
  Pair pair({.caps = FI_MSG | FI_RMA});
  const size_t most = pair.a().info->domain_attr->max_err_data;
  if (most == 0) Refuse("max_err_data 0");
  MakeError(pair);
  std::vector<char> text(most + 16, 'x');
  fi_cq_err_entry error = {};
  error.err_data = text.data();
  error.err_data_size = most;
  Expect(fi_cq_readerr(pair.a().tx_cq, &error, 0) == 1, "fi_cq_readerr");
  Expect(error.err_data_size > 0 && error.err_data_size <= most, "err_data_size %zu of %zu",
         error.err_data_size, most);
  Expect(text[0] != 'x' && text[most] == 'x', "nothing, or too much, was written");
  Note("\"%.*s\"", static_cast<int>(std::min<size_t>(error.err_data_size, 100)), text.data());
}

FI_CASE("max_err_data.in_the_providers_buffer", kReliable) {
  Pair pair({.caps = FI_MSG | FI_RMA});
  if (pair.a().info->domain_attr->max_err_data == 0) Refuse("max_err_data 0");
  MakeError(pair);
  fi_cq_err_entry error = {};
  Expect(fi_cq_readerr(pair.a().tx_cq, &error, 0) == 1, "fi_cq_readerr");
  Expect(error.err_data != nullptr && error.err_data_size > 0, "no data");
}

FI_CASE("max_err_data.before_1_5", kReliable) {
  Pair pair({.caps = FI_MSG | FI_RMA, .mr_mode = FI_MR_SCALABLE, .version = FI_VERSION(1, 4)});
  MakeError(pair);
  char mine[8] = "mine";
  fi_cq_err_entry error = {};
  error.err_data = mine;
  Expect(fi_cq_readerr(pair.a().tx_cq, &error, 0) == 1, "fi_cq_readerr");
  Expect(strcmp(mine, "mine") == 0, "the buffer, which has to be ignored, was written");
}

}  // namespace
}  // namespace verbena::fi_test
