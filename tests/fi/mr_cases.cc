// fi_mr(3) and the mr_mode bits of fi_domain(3).
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kRemote = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr size_t kPage = 4096;

Wish Mode(int mr_mode, uint64_t more = 0, uint32_t version = FI_VERSION(1, 17)) {
  return {.caps = FI_MSG | FI_RMA | more, .mr_mode = mr_mode, .version = version};
}

// A write lands in the target's memory and a read brings it back.
void MustReach(Pair& pair, Memory& target, uint32_t seed) {
  Memory out(pair.a(), target.size());
  out.Fill(seed);
  Need(Write(pair.a(), out, target, 1), "fi_writemsg");
  Await(pair.a().tx_cq, "the write");
  Expect(WaitUntil([&] { return target.Has(seed, target.size()); }), "the bytes did not come");
  memset(out.data(), 0, out.size());
  Need(Post([&] {
         return fi_read(pair.a().ep, out.data(), out.size(), out.desc(), pair.a().other,
                        target.Remote(), target.key(), ContextOf(2));
       }),
       "fi_read");
  Await(pair.a().tx_cq, "the read");
  Expect(out.Has(seed, out.size()), "the read brings other bytes");
}

// One write by plain numbers; its error, or 0.
int WriteTo(Pair& pair, uint64_t address, uint64_t key, uint8_t value, size_t bytes = 64) {
  Memory out(pair.a(), bytes, 0, value);
  Need(Post([&] {
         return fi_write(pair.a().ep, out.data(), bytes, out.desc(), pair.a().other, address, key,
                         ContextOf(1));
       }),
       "fi_write");
  const auto got = AwaitAny(pair.a().tx_cq);
  Expect(got.has_value(), "the write never completes");
  return got->error;
}

uint64_t BaseOf(const Peer& peer, const void* bytes) {
  const int mode = peer.info->domain_attr->mr_mode;
  return mode == FI_MR_BASIC || (mode & FI_MR_VIRT_ADDR) != 0 ? reinterpret_cast<uint64_t>(bytes)
                                                              : 0;
}

void NeedMode(const Peer& peer, int bit, const char* name) {
  if ((peer.info->domain_attr->mr_mode & bit) == 0) Refuse("%s is cleared: not needed", name);
}

// --- modes -------------------------------------------------------------------------------------

FI_CASE("mr_mode.scalable_default", kReliable) {
  Pair pair(Mode(0));
  Expect((pair.b().info->domain_attr->mr_mode & ~FI_MR_SCALABLE) == 0, "mr_mode %#x",
         pair.b().info->domain_attr->mr_mode);
  Memory target(pair.b(), 1000, kRemote, 0, 0x77);
  Expect(target.key() == 0x77, "the key %#llx is not the one asked for",
         static_cast<unsigned long long>(target.key()));
  MustReach(pair, target, 1);
}
FI_CASE("mr_mode.virt_addr", kReliable) {
  Pair pair(Mode(FI_MR_VIRT_ADDR));
  Memory target(pair.b(), 1000, kRemote);
  MustReach(pair, target, 2);
  Note("%s", (pair.b().info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0 ? "kept" : "cleared");
}
FI_CASE("mr_mode.prov_key", kReliable) {
  Pair pair(Mode(FI_MR_PROV_KEY));
  Memory one(pair.b(), 1000, kRemote, 0, 0x99), two(pair.b(), 1000, kRemote, 0, 0x9A);
  Expect(one.key() != two.key(), "one key twice");
  MustReach(pair, one, 3);
  MustReach(pair, two, 4);
  Note("%s", (pair.b().info->domain_attr->mr_mode & FI_MR_PROV_KEY) != 0 ? "kept" : "cleared");
}
FI_CASE("mr_mode.local", kReliable) {
  Pair pair(Mode(FI_MR_LOCAL));
  Memory target(pair.b(), 1000, kRemote);
  MustReach(pair, target, 5);
  Note("%s", (pair.b().info->domain_attr->mr_mode & FI_MR_LOCAL) != 0 ? "kept" : "cleared");
}
FI_CASE("mr_mode.not_local", kAll) {
  Wish wish = {.caps = FI_MSG, .mr_mode = 0};
  Pair pair(wish);
  Memory out(pair.a(), 500), in(pair.b(), 500);
  Expect(out.desc() == nullptr, "registered where nobody asked");
  out.Fill(6);
  Receive(pair.b(), in);
  Send(pair.a(), out);
  Await(pair.b().rx_cq, "the receive");
  Expect(in.Has(6, 500), "wrong bytes");
}
FI_CASE("mr_mode.all_modern_bits", kReliable) {
  Pair pair(Mode(FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY));
  Memory target(pair.b(), 1000, kRemote);
  MustReach(pair, target, 7);
}
FI_CASE("mr_mode.hmem", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_HMEM, FI_HMEM));
  std::vector<uint8_t> bytes(1000);
  const iovec place = {bytes.data(), bytes.size()};
  fi_mr_attr attr = {};
  attr.mr_iov = &place;
  attr.iov_count = 1;
  attr.access = kRemote;
  attr.requested_key = NextKey();
  attr.iface = FI_HMEM_SYSTEM;
  Fid<fid_mr> mr;
  Need(fi_mr_regattr(pair.b().domain, &attr, 0, mr.Out()), "fi_mr_regattr");
  Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), fi_mr_key(mr), 0x44) == 0, "the write");
  Expect(WaitUntil([&] { return bytes[63] == 0x44; }), "the bytes did not come");
}
FI_CASE("mr_mode.unsupported_iface", kReliable) {
  Ground ground(Mode(kAnyMrMode | FI_MR_HMEM, FI_HMEM));
  uint8_t bytes[64];
  const iovec place = {bytes, sizeof(bytes)};
  fi_mr_attr attr = {};
  attr.mr_iov = &place;
  attr.iov_count = 1;
  attr.access = kRemote;
  attr.iface = static_cast<fi_hmem_iface>(77);
  Fid<fid_mr> mr;
  Expect(fi_mr_regattr(ground.domain, &attr, 0, mr.Out()) < 0, "an interface nobody has");
}
FI_CASE("mr_mode.collective", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_COLLECTIVE));
  Memory target(pair.b(), 1000, kRemote);
  MustReach(pair, target, 8);
  NeedMode(pair.b(), FI_MR_COLLECTIVE, "FI_MR_COLLECTIVE");
}
FI_CASE("mr_mode.raw", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_RAW));
  Memory target(pair.b(), 1000, kRemote);
  uint8_t raw[256];
  size_t size = sizeof(raw);
  uint64_t base = 0, key = 0;
  Need(fi_mr_raw_attr(target.mr(), &base, raw, &size, 0), "fi_mr_raw_attr");
  Expect(size == pair.b().info->domain_attr->mr_key_size, "a raw key of %zu B, mr_key_size %zu",
         size, pair.b().info->domain_attr->mr_key_size);
  Need(fi_mr_map_raw(pair.a().domain, base, raw, size, &key, 0), "fi_mr_map_raw");
  Expect(WriteTo(pair, base, key, 0x21) == 0, "the write by a mapped key");
  Expect(WaitUntil([&] { return target.data()[63] == 0x21; }), "the bytes did not come");
  Need(fi_mr_unmap_key(pair.a().domain, key), "fi_mr_unmap_key");
}
FI_CASE("mr_mode.raw_too_small", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_RAW));
  Memory target(pair.b(), 1000, kRemote);
  uint8_t raw[1];
  size_t size = 0;
  uint64_t base = 0;
  const int result = fi_mr_raw_attr(target.mr(), &base, raw, &size, 0);
  if (result != -FI_ETOOSMALL) Need(result, "fi_mr_raw_attr");
  ExpectError(result, -FI_ETOOSMALL, "room for 0 B");
  Expect(size == pair.b().info->domain_attr->mr_key_size, "needed: %zu", size);
}

// Pages are exchanged under a registered address; after fi_mr_refresh the new ones are written.
void Refresh(bool of_a_part) {
  Pair pair(Mode(kAnyMrMode | FI_MR_MMU_NOTIFY));
  const auto map = [](void* place, int more) {
    return mmap(place, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more, -1,
                0);
  };
  auto* bytes = static_cast<uint8_t*>(map(nullptr, 0));
  memset(bytes, 1, 4 * kPage);
  {
    Fid<fid_mr> mr;
    Need(Register(pair.b(), bytes, 4 * kPage, kRemote, mr.Out()), "fi_mr_reg");
    const uint64_t base = BaseOf(pair.b(), bytes);
    Expect(WriteTo(pair, base, fi_mr_key(mr), 2) == 0 && WaitUntil([&] { return bytes[63] == 2; }),
           "a write before");
    munmap(bytes, 4 * kPage);
    Expect(map(bytes, MAP_FIXED) == bytes, "mmap");
    memset(bytes, 3, 4 * kPage);
    const iovec part = {bytes, kPage};
    Need(fi_mr_refresh(mr, of_a_part ? &part : nullptr, of_a_part ? 1 : 0, 0), "fi_mr_refresh");
    Expect(WriteTo(pair, base, fi_mr_key(mr), 4) == 0, "a write after");
    Expect(WaitUntil([&] { return bytes[63] == 4; }), "it went to the old pages");
    Expect(bytes[64] == 3, "bytes behind the write");
  }
  munmap(bytes, 4 * kPage);
  NeedMode(pair.b(), FI_MR_MMU_NOTIFY, "FI_MR_MMU_NOTIFY");
}
FI_CASE("mr_mode.mmu_notify_refresh", kReliable) { Refresh(false); }
FI_CASE("mr_mode.mmu_notify_refresh_part", kReliable) { Refresh(true); }

FI_CASE("mr_mode.not_allocated", kReliable) {
  // Without FI_MR_ALLOCATED addresses may be registered that are nobody's yet.
  Pair pair(Mode(FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_LOCAL));
  auto* bytes = static_cast<uint8_t*>(
      mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  munmap(bytes, kPage);
  {
    Fid<fid_mr> mr;
    Need(Register(pair.b(), bytes, kPage, kRemote, mr.Out()), "fi_mr_reg of no pages");
    Expect(mmap(bytes, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0) == bytes,
           "mmap");
    Expect(WriteTo(pair, BaseOf(pair.b(), bytes), fi_mr_key(mr), 9) == 0, "a write");
    Expect(WaitUntil([&] { return bytes[63] == 9; }), "the bytes did not come");
  }
  munmap(bytes, kPage);
}

FI_CASE("mr_mode.rma_event", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_RMA_EVENT, FI_RMA_EVENT));
  NeedMode(pair.b(), FI_MR_RMA_EVENT, "FI_MR_RMA_EVENT");
  std::vector<uint8_t> bytes(1000);
  const Fid<fid_cntr> cntr = OpenCntr(pair.b().domain);
  Fid<fid_mr> mr;
  Need(Register(pair.b(), bytes.data(), bytes.size(), kRemote, mr.Out(), 0, FI_RMA_EVENT),
       "fi_mr_reg with FI_RMA_EVENT");
  Need(fi_mr_bind(mr, cntr.Base(), FI_REMOTE_WRITE), "fi_mr_bind");
  Need(fi_mr_enable(mr), "fi_mr_enable");
  for (int i = 0; i < 3; ++i) {
    Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), fi_mr_key(mr), 7) == 0, "a write");
  }
  Expect(WaitUntil([&] { return fi_cntr_read(cntr) == 3; }), "the counter says %llu of 3",
         static_cast<unsigned long long>(fi_cntr_read(cntr)));
  Expect(fi_mr_bind(mr, cntr.Base(), FI_REMOTE_WRITE) < 0, "bound after it was enabled");
}

FI_CASE("mr_mode.rma_event_disabled_till_enabled", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_RMA_EVENT, FI_RMA_EVENT));
  NeedMode(pair.b(), FI_MR_RMA_EVENT, "FI_MR_RMA_EVENT");
  std::vector<uint8_t> bytes(1000);
  Fid<fid_mr> mr;
  Need(Register(pair.b(), bytes.data(), bytes.size(), kRemote, mr.Out(), 0x123, FI_RMA_EVENT),
       "fi_mr_reg with FI_RMA_EVENT");
  const uint64_t key = fi_mr_key(mr) == FI_KEY_NOTAVAIL ? 0x123 : fi_mr_key(mr);
  Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), key, 7) != 0, "disabled memory is written");
  Expect(bytes[0] == 0, "disabled memory has changed");
}

FI_CASE("mr.bind_counter", kReliable) {
  Pair pair(Mode(kAnyMrMode, FI_RMA_EVENT));
  Memory one(pair.b(), 1000, kRemote), two(pair.b(), 1000, kRemote);
  const Fid<fid_cntr> cntr = OpenCntr(pair.b().domain);
  Need(fi_mr_bind(one.mr(), cntr.Base(), FI_REMOTE_WRITE), "fi_mr_bind");
  for (int i = 0; i < 3; ++i) {
    Expect(WriteTo(pair, one.Remote(), one.key(), 7) == 0, "a write");
    Expect(WriteTo(pair, two.Remote(), two.key(), 7) == 0, "a write elsewhere");
  }
  Expect(WaitUntil([&] { return fi_cntr_read(cntr) == 3; }), "the counter says %llu of 3",
         static_cast<unsigned long long>(fi_cntr_read(cntr)));
  one.mr().Close();
}

FI_CASE("mr.bind_busy", kReliable) {
  Pair pair(Mode(kAnyMrMode, FI_RMA_EVENT));
  Memory target(pair.b(), 1000, kRemote);
  Fid<fid_cntr> cntr = OpenCntr(pair.b().domain);
  Need(fi_mr_bind(target.mr(), cntr.Base(), FI_REMOTE_WRITE), "fi_mr_bind");
  ExpectError(cntr.Close(), -FI_EBUSY, "closing the counter of a memory region");
  target.mr().Close();
  Need(cntr.Close(), "closing it afterwards");
}

FI_CASE("mr_mode.endpoint", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_ENDPOINT));
  NeedMode(pair.b(), FI_MR_ENDPOINT, "FI_MR_ENDPOINT");
  std::vector<uint8_t> bytes(1000);
  Fid<fid_mr> mr;
  Need(Register(pair.b(), bytes.data(), bytes.size(), kRemote, mr.Out()), "fi_mr_reg");
  Expect(fi_mr_enable(mr) < 0, "enabled without an endpoint");
  Need(fi_mr_bind(mr, pair.b().ep.Base(), 0), "fi_mr_bind");
  Need(fi_mr_enable(mr), "fi_mr_enable");
  Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), fi_mr_key(mr), 7) == 0, "a write");
  Expect(WaitUntil([&] { return bytes[0] == 7; }), "the bytes did not come");
}

FI_CASE("mr_mode.endpoint_is_the_boundary", kReliable) {
  Pair pair(Mode(kAnyMrMode | FI_MR_ENDPOINT)), other(Mode(kAnyMrMode | FI_MR_ENDPOINT));
  NeedMode(pair.b(), FI_MR_ENDPOINT, "FI_MR_ENDPOINT");
  std::vector<uint8_t> bytes(1000);
  Fid<fid_mr> mr;
  Need(Register(pair.b(), bytes.data(), bytes.size(), kRemote, mr.Out()), "fi_mr_reg");
  Need(fi_mr_bind(mr, pair.b().ep.Base(), 0), "fi_mr_bind");
  Need(fi_mr_enable(mr), "fi_mr_enable");
  Expect(WriteTo(other, BaseOf(pair.b(), bytes.data()), fi_mr_key(mr), 7) != 0,
         "written through an endpoint that it is not bound to");
  Expect(bytes[0] == 0, "the memory has changed");
}

// --- older versions ----------------------------------------------------------------------------

FI_CASE("mr_mode.basic", kReliable) {
  Wish wish = Mode(FI_MR_BASIC);
  wish.hints = [](fi_info* hints) { hints->mode |= FI_LOCAL_MR; };
  Pair pair(wish);
  Expect(pair.b().info->domain_attr->mr_mode == FI_MR_BASIC, "mr_mode %#x",
         pair.b().info->domain_attr->mr_mode);
  Memory target(pair.b(), 1000, kRemote);
  MustReach(pair, target, 11);
}
FI_CASE("mr_mode.scalable", kReliable) {
  Pair pair(Mode(FI_MR_SCALABLE));
  Expect(pair.b().info->domain_attr->mr_mode == FI_MR_SCALABLE, "mr_mode %#x",
         pair.b().info->domain_attr->mr_mode);
  Memory target(pair.b(), 1000, kRemote, 0, 0x55);
  Expect(target.key() == 0x55, "not the key asked for");
  MustReach(pair, target, 12);
}

// Each version: listed as that version, and what it may ask for works.
void AtVersion(unsigned minor) {
  const uint32_t version = FI_VERSION(1, minor);
  const bool is_old = minor < 5;
  for (const int mode :
       {0, static_cast<int>(FI_MR_BASIC), static_cast<int>(FI_MR_SCALABLE), kAnyMrMode}) {
    if (is_old && mode == kAnyMrMode) continue;  // bits of 1.5
    Wish wish = Mode(mode, 0, version);
    wish.hints = [](fi_info* hints) { hints->mode |= FI_LOCAL_MR; };
    Info info;
    const int result = TryGetInfo(wish, &info);
    if (mode == FI_MR_BASIC && result == -FI_ENODATA) continue;
    Expect(result == 0, "mr_mode %#x: %s", mode, NameOf(result).c_str());
    const int said = info->domain_attr->mr_mode;
    Expect(info->fabric_attr->api_version == version, "api_version %#x",
           info->fabric_attr->api_version);
    if (is_old && mode == 0) {
      Expect(said == FI_MR_BASIC || said == FI_MR_SCALABLE, "FI_MR_UNSPEC gives %#x", said);
    } else if (mode == FI_MR_BASIC || mode == FI_MR_SCALABLE) {
      Expect(said == mode, "%#x gives %#x", mode, said);
    } else {
      Expect((said & ~(mode | FI_MR_SCALABLE)) == 0, "%#x gives %#x", mode, said);
    }
    Expect(!is_old || (info->domain_attr->auth_key_size == 0), "an auth key before 1.5");
    Pair pair(wish);
    Memory target(pair.b(), 500, kRemote);
    MustReach(pair, target, 20 + minor);
  }
}
const bool kVersionCases = [] {
  for (unsigned minor = 4; minor <= 17; ++minor) {
    Registration(
        "version.1_" + std::to_string(minor), [minor] { AtVersion(minor); }, kReliable, 30);
  }
  return true;
}();

FI_CASE("version.local_mr_mode_bit", kReliable) {
  // Before 1.5 the bit of fi_info said what FI_MR_LOCAL says now.
  Wish wish = Mode(FI_MR_SCALABLE, 0, FI_VERSION(1, 4));
  Info info;
  Need(TryGetInfo(wish, &info), "without FI_LOCAL_MR");
  Expect((info->mode & FI_LOCAL_MR) == 0, "FI_LOCAL_MR, which the application can't");
}

// --- registration ------------------------------------------------------------------------------

FI_CASE("mr.key_collision", kReliable) {
  Ground ground(Mode(0));
  uint8_t bytes[128];
  Fid<fid_mr> one, two;
  Need(Register(ground, bytes, 64, kRemote, one.Out(), 0x42), "fi_mr_reg");
  ExpectError(Register(ground, bytes + 64, 64, kRemote, two.Out(), 0x42), -FI_ENOKEY,
              "the same key again");
  Need(one.Close(), "fi_close");
  Need(Register(ground, bytes + 64, 64, kRemote, two.Out(), 0x42), "the key after its memory");
}

FI_CASE("mr.key_out_of_range", kReliable) {
  Ground ground(Mode(0));
  const size_t size = ground.info->domain_attr->mr_key_size;
  if (size >= 8) DoesNotApply("mr_key_size %zu: there is none", size);
  uint8_t bytes[64];
  Fid<fid_mr> mr;
  ExpectError(Register(ground, bytes, 64, kRemote, mr.Out(), 1ULL << (8 * size)), -FI_EKEYREJECTED,
              "a key beyond mr_key_size");
}

FI_CASE("mr.key_range", kReliable) {
  Pair pair(Mode(0));
  const size_t size = pair.b().info->domain_attr->mr_key_size;
  Expect(size >= 1 && size <= 8, "mr_key_size %zu", size);
  const uint64_t largest = size == 8 ? ~0ULL - 1 : (1ULL << (8 * size)) - 2;
  for (const uint64_t key : {uint64_t{0}, largest}) {
    std::vector<uint8_t> bytes(64);
    Fid<fid_mr> mr;
    Need(fi_mr_reg(pair.b().domain, bytes.data(), 64, kRemote, 0, key, 0, mr.Out(), nullptr),
         "fi_mr_reg");
    Expect(fi_mr_key(mr) == key, "not the key asked for");
    Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), key, 6) == 0, "a write by key %#llx",
           static_cast<unsigned long long>(key));
    Expect(WaitUntil([&] { return bytes[0] == 6; }), "the bytes did not come");
  }
  Note("%zu B", size);
}

FI_CASE("mr.regv", kReliable) {
  Pair pair(Mode(kAnyMrMode));
  const size_t limit = pair.b().info->domain_attr->mr_iov_limit;
  const size_t count = std::clamp<size_t>(limit, 1, 8);
  std::vector<uint8_t> bytes(2 * 64 * count);
  std::vector<iovec> parts(count);
  for (size_t i = 0; i < count; ++i) parts[i] = {bytes.data() + 2 * 64 * i, 64};
  Fid<fid_mr> mr;
  Need(
      fi_mr_regv(pair.b().domain, parts.data(), count, kRemote, 0, NextKey(), 0, mr.Out(), nullptr),
      "fi_mr_regv");
  Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), fi_mr_key(mr), 5, 64 * count) == 0,
         "a write over all parts");
  Expect(WaitUntil([&] { return bytes[2 * 64 * (count - 1) + 63] == 5; }), "the last part");
  for (size_t i = 0; i < bytes.size(); ++i) {
    Expect(bytes[i] == (i / 64 % 2 == 0 ? 5 : 0), "byte %zu is %d", i, bytes[i]);
  }
  Note("mr_iov_limit %zu", limit);
}

FI_CASE("mr.regv_beyond_limit", kReliable) {
  Ground ground(Mode(kAnyMrMode));
  const size_t count = ground.info->domain_attr->mr_iov_limit + 1;
  if (count > 100000) DoesNotApply("no limit");
  std::vector<uint8_t> bytes(count * 2);
  std::vector<iovec> parts(count);
  for (size_t i = 0; i < count; ++i) parts[i] = {bytes.data() + 2 * i, 1};
  Fid<fid_mr> mr;
  const int result =
      fi_mr_regv(ground.domain, parts.data(), count, kRemote, 0, NextKey(), 0, mr.Out(), nullptr);
  Expect(result < 0, "%zu parts are accepted", count);
  Note("%s", NameOf(result).c_str());
}

FI_CASE("mr.regattr", kReliable) {
  Pair pair(Mode(kAnyMrMode));
  std::vector<uint8_t> bytes(256);
  const iovec place = {bytes.data(), bytes.size()};
  fi_mr_attr attr = {};
  attr.mr_iov = &place;
  attr.iov_count = 1;
  attr.access = kRemote;
  attr.requested_key = NextKey();
  attr.context = &attr;
  Fid<fid_mr> mr;
  Need(fi_mr_regattr(pair.b().domain, &attr, 0, mr.Out()), "fi_mr_regattr");
  Expect(mr->fid.context == &attr && mr->fid.fclass == FI_CLASS_MR, "context or class");
  Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), fi_mr_key(mr), 5) == 0, "a write");
  Expect(WaitUntil([&] { return bytes[63] == 5; }), "the bytes did not come");
}

FI_CASE("mr.bad_input", kReliable) {
  Ground ground(Mode(kAnyMrMode));
  uint8_t bytes[64];
  Fid<fid_mr> mr;
  const auto reg = [&](size_t len, uint64_t offset, uint64_t flags) {
    return fi_mr_reg(ground.domain, bytes, len, kRemote, offset, NextKey(), flags, mr.Out(),
                     nullptr);
  };
  Expect(reg(0, 0, 0) < 0, "memory of no length is accepted");
  Expect(reg(64, 8, 0) < 0, "an offset, which must be 0, is accepted");
  ExpectError(reg(64, 0, 1ULL << 62), -FI_EBADFLAGS, "an unknown flag");
}

FI_CASE("mr.raw_of_any_key", kReliable) {
  // These functions are usable with every region, FI_MR_RAW or not.
  Pair pair(Mode(kAnyMrMode));
  Memory target(pair.b(), 1000, kRemote);
  uint8_t raw[256];
  size_t size = sizeof(raw);
  uint64_t base = 0, key = 0;
  Need(fi_mr_raw_attr(target.mr(), &base, raw, &size, 0), "fi_mr_raw_attr");
  Need(fi_mr_map_raw(pair.a().domain, base, raw, size, &key, 0), "fi_mr_map_raw");
  Expect(WriteTo(pair, target.Remote(), key, 0x22) == 0, "a write by the mapped key");
  Need(fi_mr_unmap_key(pair.a().domain, key), "fi_mr_unmap_key");
}

FI_CASE("mr.overlapping", kReliable) {
  Pair pair(Mode(kAnyMrMode));
  std::vector<uint8_t> bytes(8192);
  Fid<fid_mr> whole, part;
  Need(Register(pair.b(), bytes.data(), 8192, kRemote, whole.Out()), "fi_mr_reg");
  Need(Register(pair.b(), bytes.data() + 1000, 100, kRemote, part.Out()), "fi_mr_reg of a part");
  Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data() + 1000), fi_mr_key(part), 4) == 0, "a write");
  Expect(WaitUntil([&] { return bytes[1000] == 4; }), "the bytes did not come");
  Need(part.Close(), "fi_close");
  Expect(WriteTo(pair, BaseOf(pair.b(), bytes.data()), fi_mr_key(whole), 5) == 0, "the whole's");
  Expect(WaitUntil([&] { return bytes[0] == 5; }), "the bytes did not come");
}

}  // namespace
}  // namespace verbena::fi_test
