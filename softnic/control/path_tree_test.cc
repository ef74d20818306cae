#include "softnic/control/path_tree.h"

#include <endian.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "softnic/control/server.h"

namespace verbena::softnic {
namespace {

namespace fs = std::filesystem;

class PathTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/tree-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  static std::vector<NicStatus> StatusesOf(uint32_t nics, bool is_up = true) {
    std::vector<NicStatus> statuses(nics);
    for (uint32_t i = 0; i < nics; ++i) {
      NicStatus& status = statuses[i];
      std::snprintf(status.info.name, sizeof(status.info.name), "nic%u", i);
      status.info.index = i;
      status.device_attributes.node_guid = htobe64(0x0011'22ff'fe33'4400 + i);
      status.port_attributes.state = is_up ? 4 : 1;
      status.port_attributes.phys_state = is_up ? 5 : 3;
      status.port_attributes.active_width = 2;
      status.port_attributes.active_speed = 32;
      status.port_attributes.lid = 0x7f01;
      status.port_attributes.port_cap_flags = 0x10000;
      status.port_attributes.pkey_tbl_len = 1;
      status.gids.resize(3);
      status.gids[1].raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, uint8_t(i + 1)};
    }
    return statuses;
  }
  std::string Read(const std::string& path) const {
    std::ifstream in(directory_ + "/paths" + path);
    std::stringstream text;
    text << in.rdbuf();
    return in.is_open() ? text.str() : "none";
  }
  ino_t InodeOf(const std::string& path) const {
    struct stat st = {};
    return stat((directory_ + "/paths" + path).c_str(), &st) == 0 ? st.st_ino : 0;
  }

  std::string directory_;
};

TEST_F(PathTreeTest, SaysWhatAKernelWould) {
  PathTree tree(directory_);
  ASSERT_EQ(tree.Show(StatusesOf(2), transport::NetworkNamespaces()), "");
  const std::string nic = "/sys/class/infiniband/nic1/", port = nic + "ports/1/";
  EXPECT_EQ(Read(nic + "node_type"), "1: CA\n");
  EXPECT_EQ(Read(nic + "node_guid"), "0011:22ff:fe33:4401\n");
  EXPECT_EQ(Read(port + "state"), "4: ACTIVE\n");
  EXPECT_EQ(Read(port + "phys_state"), "5: LinkUp\n");
  EXPECT_EQ(Read(port + "link_layer"), "Ethernet\n");
  EXPECT_EQ(Read(port + "rate"), "100 Gb/sec (4X EDR)\n");
  EXPECT_EQ(Read(port + "lid"), "0x7f01\n");
  EXPECT_EQ(Read(port + "cap_mask"), "0x00010000\n");
  EXPECT_EQ(Read(port + "pkeys/0"), "0xffff\n");
  EXPECT_EQ(Read(port + "gids/1"), "0000:0000:0000:0000:0000:ffff:7f00:0002\n");
  EXPECT_EQ(Read(port + "gids/0"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
  EXPECT_EQ(Read(port + "gid_attrs/types/1"), "RoCE v2\n");
  EXPECT_EQ(Read(port + "gid_attrs/types/0"), "none") << "of an empty entry";
  EXPECT_EQ(Read(port + "gid_attrs/ndevs/1"), "lo\n");
  EXPECT_EQ(Read(nic + "device/numa_node"), "-1\n");
  EXPECT_EQ(Read(nic + "device/net/lo/dev_port"), "0\n");
  EXPECT_NE(Read(nic + "device/local_cpus").find_first_not_of("0,\n"), std::string::npos);
  EXPECT_EQ(Read("/sys/class/infiniband_verbs/uverbs1/ibdev"), "nic1\n");
  EXPECT_EQ(fs::read_symlink(directory_ + "/paths/dev/infiniband/uverbs1"), "/dev/null");
}

TEST_F(PathTreeTest, FollowsAndLeavesAloneWhatStays) {
  PathTree tree(directory_);
  ASSERT_EQ(tree.Show(StatusesOf(1), transport::NetworkNamespaces()), "");
  const std::string port = "/sys/class/infiniband/nic0/ports/1/";
  const ino_t gid = InodeOf(port + "gids/1"), state = InodeOf(port + "state");
  ASSERT_EQ(tree.Show(StatusesOf(2, false), transport::NetworkNamespaces()), "");
  EXPECT_EQ(Read(port + "state"), "1: DOWN\n");
  EXPECT_EQ(Read(port + "phys_state"), "3: Disabled\n");
  EXPECT_EQ(InodeOf(port + "gids/1"), gid);
  EXPECT_NE(InodeOf(port + "state"), state) << "replaced as a whole";
  EXPECT_NE(InodeOf("/sys/class/infiniband/nic1/node_guid"), 0u) << "a NIC that came later";
}

TEST_F(PathTreeTest, ClearLeavesNothing) {
  PathTree tree(directory_);
  ASSERT_EQ(tree.Show(StatusesOf(1), transport::NetworkNamespaces()), "");
  tree.Clear();
  EXPECT_TRUE(fs::is_empty(directory_));
  ASSERT_EQ(tree.Show(StatusesOf(1), transport::NetworkNamespaces()), "");
  EXPECT_EQ(Read("/sys/class/infiniband/nic0/node_type"), "1: CA\n");
  // What a daemon that was killed left.
  PathTree next(directory_);
  next.Clear();
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(PathTreeTest, SaysWhatItCannotWrite) {
  std::ofstream(directory_ + "/paths") << "in the way";
  PathTree tree(directory_);
  EXPECT_NE(tree.Show(StatusesOf(1), transport::NetworkNamespaces())
                .find("can't write " + directory_ + "/paths/"),
            std::string::npos);
}

}  // namespace
}  // namespace verbena::softnic
