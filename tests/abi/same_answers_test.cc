// Pure functions: ours and Debian's libibverbs give the same answers. Debian's library is loaded
// into a namespace of its own, as both have one soname.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include <cstring>
#include <random>
#include <string>

namespace {

constexpr const char* kReference = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

class SameAnswers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    reference_ = dlmopen(LM_ID_NEWLM, kReference, RTLD_NOW | RTLD_LOCAL);
    ours_ = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  }
  void SetUp() override {
    ASSERT_NE(reference_, nullptr) << dlerror();
    ASSERT_NE(ours_, nullptr) << dlerror();
    ASSERT_NE(dlsym(ours_, "ibv_wc_status_str"), dlsym(reference_, "ibv_wc_status_str"));
  }

  // Calls both for every value around an enum's.
  template <typename Result>
  void ForEach(const char* name, int first, int last) {
    auto theirs = reinterpret_cast<Result (*)(int)>(dlsym(reference_, name));
    auto mine = reinterpret_cast<Result (*)(int)>(dlsym(ours_, name));
    ASSERT_TRUE(theirs != nullptr && mine != nullptr) << name;
    for (int value = first; value <= last; ++value) {
      if constexpr (std::is_same_v<Result, const char*>) {
        EXPECT_STREQ(mine(value), theirs(value)) << name << "(" << value << ")";
      } else {
        EXPECT_EQ(mine(value), theirs(value)) << name << "(" << value << ")";
      }
    }
  }

  // Fills a source with random bytes, converts it with both, and compares every byte.
  template <typename To, typename From>
  void SameCopy(const char* name) {
    auto theirs = reinterpret_cast<void (*)(To*, From*)>(dlsym(reference_, name));
    auto mine = reinterpret_cast<void (*)(To*, From*)>(dlsym(ours_, name));
    ASSERT_TRUE(theirs != nullptr && mine != nullptr) << name;
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
      From from;
      auto* bytes = reinterpret_cast<unsigned char*>(&from);
      for (size_t i = 0; i < sizeof(from); ++i) bytes[i] = static_cast<unsigned char>(random());
      alignas(To) unsigned char a[sizeof(To)];
      alignas(To) unsigned char b[sizeof(To)];
      memset(a, 0x5a, sizeof(a));
      memset(b, 0x5a, sizeof(b));
      mine(reinterpret_cast<To*>(a), &from);
      theirs(reinterpret_cast<To*>(b), &from);
      ASSERT_EQ(memcmp(a, b, sizeof(a)), 0) << name << ", round " << round;
    }
  }

  static void* reference_;
  static void* ours_;
};
void* SameAnswers::reference_ = nullptr;
void* SameAnswers::ours_ = nullptr;

TEST_F(SameAnswers, Names) {
  ForEach<const char*>("ibv_node_type_str", -2, 12);
  ForEach<const char*>("ibv_port_state_str", -2, 12);
  ForEach<const char*>("ibv_wc_status_str", -2, 40);
  // v64 names one event more than Debian's library.
  ForEach<const char*>("ibv_event_type_str", -2, IBV_EVENT_WQ_FATAL);
  ForEach<const char*>("ibv_event_type_str", IBV_EVENT_WQ_FATAL + 2, 40);
  EXPECT_STREQ(ibv_event_type_str(static_cast<ibv_event_type>(IBV_EVENT_WQ_FATAL + 1)),
               "Device link speed change");
}

TEST_F(SameAnswers, Rates) {
  ForEach<int>("ibv_rate_to_mult", -2, 40);
  ForEach<int>("ibv_rate_to_mbps", -2, 40);
  ForEach<int>("mult_to_ibv_rate", -2, 600);
  for (int rate = 0; rate < 40; ++rate) {
    int mbps = ibv_rate_to_mbps(static_cast<ibv_rate>(rate));
    if (mbps > 0) ForEach<int>("mbps_to_ibv_rate", mbps - 1, mbps + 1);
  }
}

TEST_F(SameAnswers, ConversionsFromTheKernelsStructures) {
  SameCopy<ibv_ah_attr, ib_uverbs_ah_attr>("ibv_copy_ah_attr_from_kern");
  SameCopy<ibv_qp_attr, ib_uverbs_qp_attr>("ibv_copy_qp_attr_from_kern");
  SameCopy<ibv_sa_path_rec, ib_user_path_rec>("ibv_copy_path_rec_from_kern");
  SameCopy<ib_user_path_rec, ibv_sa_path_rec>("ibv_copy_path_rec_to_kern");
}

TEST_F(SameAnswers, SysfsFiles) {
  auto name = "ibv_read_sysfs_file";
  using Read = int (*)(const char*, const char*, char*, size_t);
  auto theirs = reinterpret_cast<Read>(dlsym(reference_, name));
  auto mine = reinterpret_cast<Read>(dlsym(ours_, name));
  struct {
    const char* dir;
    const char* file;
    size_t size;
  } cases[] = {{"/proc/sys/kernel", "ostype", 64}, {"/proc/sys/kernel", "ostype", 5},
               {"/proc/sys/kernel", "ostype", 6},  {"/proc/sys/kernel", "ostype", 4},
               {"/nowhere", "nothing", 64},        {"/dev", "null", 64}};
  for (const auto& c : cases) {
    char a[64] = {}, b[64] = {};
    EXPECT_EQ(mine(c.dir, c.file, a, c.size), theirs(c.dir, c.file, b, c.size)) << c.file << c.size;
    EXPECT_EQ(memcmp(a, b, sizeof(a)), 0) << c.file << c.size;
  }
}

}  // namespace
