// A host that has a C++ runtime, an Abseil and exceptions of its own, as our guest. No instance
// runs: what needs a NIC is tested by the conformance suite.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <stdlib.h>

#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace {

class Host : public testing::Test {
 protected:
  void SetUp() override {
    setenv("VERBENA_AUTOSTART", "0", 1);
    setenv("VERBENA_INSTANCE", (testing::TempDir() + "/no_instance").c_str(), 1);
  }
};

TEST_F(Host, LoadsOurLibraryAndOnlyOurs) {
  std::ifstream maps("/proc/self/maps");
  std::string line, paths;
  while (std::getline(maps, line)) {
    if (line.find("libibverbs") != std::string::npos) paths += line.substr(line.find('/')) + "\n";
  }
  EXPECT_NE(paths, "");
  EXPECT_EQ(paths.find("/usr/lib"), std::string::npos) << paths;
}

TEST_F(Host, NoInstanceIsAnEmptyListAndNoError) {
  int count = 7;
  errno = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(errno, 0);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(list[0], nullptr);
  ibv_free_device_list(list);
}

TEST_F(Host, ItsAbseilAndOursDoNotMeet) {
  absl::flat_hash_map<std::string, int> map;
  absl::Mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        int count = 0;
        ibv_free_device_list(ibv_get_device_list(&count));
        absl::MutexLock lock(&mutex);
        map[absl::StrCat("thread ", t, " round ", i)] = count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(map.size(), 800u);
}

// The library holds a second C++ runtime. The host's exceptions must pass it by.
TEST_F(Host, ItsExceptionsStillWork) {
  for (int i = 0; i < 100; ++i) {
    ibv_free_device_list(ibv_get_device_list(nullptr));
    EXPECT_THROW(throw std::runtime_error(absl::StrCat(i)), std::exception);
    EXPECT_THROW(std::vector<int>().at(3), std::out_of_range);
  }
}

TEST_F(Host, SymbolsAreFoundByVersionAsNcclAsks) {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const char* name : {"ibv_get_device_list", "ibv_open_device", "ibv_reg_mr", "ibv_create_qp",
                           "ibv_get_async_event", "ibv_event_type_str"}) {
    EXPECT_NE(dlvsym(library, name, "IBVERBS_1.1"), nullptr) << name;
    EXPECT_EQ(dlvsym(library, name, "IBVERBS_1.1"), dlsym(library, name)) << name;
  }
  EXPECT_NE(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_query_gid_type", "IBVERBS_PRIVATE_64"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_get_device_list", "IBVERBS_1.0"), nullptr);
  dlclose(library);
}

TEST_F(Host, ProviderLibrariesRegisterWithoutHarm) {
  for (const char* name : {"libmlx5.so.1", "libefa.so.1", "libmlx4.so.1"}) {
    void* provider = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(provider, nullptr) << dlerror();
  }
  for (const char* version : {"34", "57", "59", "64"}) {
    auto name = absl::StrCat("verbs_register_driver_", version);
    auto reg = reinterpret_cast<void (*)(const void*)>(dlsym(RTLD_DEFAULT, name.c_str()));
    ASSERT_NE(reg, nullptr) << name;
    reg(nullptr);
  }
}

TEST_F(Host, WhatIsNotSupportedSaysSo) {
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
  EXPECT_EQ(ibv_reg_dmabuf_mr(nullptr, 0, 4096, 0, -1, 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Host, LibraryStaysAfterClosing) {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  for (int i = 0; i < 3; ++i) dlclose(library);
  EXPECT_NE(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr);
}

}  // namespace
