#include "fi_shim/nic_attr.h"

#include <endian.h>
#include <gtest/gtest.h>
#include <rdma/fi_errno.h>

#include <cstring>

#include "fi_shim/copy_info.h"

namespace verbena::fi {
namespace {

fid_nic* Nic() {
  shm::QueryDeviceReply device = {};
  memcpy(device.fw_ver, "1.2.3", 5);
  device.node_guid = htobe64(0x0011'22ff'fe33'4455);
  device.vendor_id = 0x7662;
  device.vendor_part_id = 3;
  shm::QueryPortReply port = {};
  port.state = 4;          // active
  port.active_mtu = 5;     // 4096
  port.active_width = 2;   // 4 lanes
  port.active_speed = 32;  // of 25 Gb/s
  port.link_layer = 2;     // Ethernet
  return MakeNic("verbena7", device, port);
}

void IsThat(const fid_nic& nic) {
  EXPECT_EQ(nic.fid.fclass, size_t{FI_CLASS_NIC});
  EXPECT_STREQ(nic.device_attr->name, "verbena7");
  EXPECT_STREQ(nic.device_attr->device_id, "0x0003");
  EXPECT_STREQ(nic.device_attr->vendor_id, "0x7662");
  EXPECT_STREQ(nic.device_attr->driver, "verbena");
  EXPECT_STREQ(nic.device_attr->firmware, "1.2.3");
  EXPECT_EQ(nic.bus_attr->bus_type, FI_BUS_UNKNOWN);
  EXPECT_STREQ(nic.link_attr->address, "02:11:22:33:44:55");
  EXPECT_EQ(nic.link_attr->mtu, 4096u);
  EXPECT_EQ(nic.link_attr->speed, 100'000'000'000u);
  EXPECT_EQ(nic.link_attr->state, FI_LINK_UP);
  EXPECT_STREQ(nic.link_attr->network_type, "Ethernet");
}

TEST(NicAttr, SaysWhatTheNicIs) {
  fid_nic* nic = Nic();
  ASSERT_NE(nic, nullptr);
  IsThat(*nic);
  EXPECT_EQ(fi_close(&nic->fid), 0);
}

TEST(NicAttr, GoesAlongWithCopiesOfItsInfo) {
  fi_info info = {};
  info.nic = Nic();
  fi_info* copy = CopyInfo(&info);
  ASSERT_NE(copy, nullptr);
  FreeNic(info.nic);
  IsThat(*copy->nic);
  FreeInfo(copy);
}

TEST(NicAttr, IsDuplicatedWhenAsked) {
  fid_nic* nic = Nic();
  fid_nic* copy = nullptr;
  ASSERT_EQ(fi_control(&nic->fid, FI_DUP, &copy), 0);
  ASSERT_NE(copy, nic);
  EXPECT_EQ(fi_control(&nic->fid, FI_GETWAIT, &copy), -FI_ENOSYS);
  FreeNic(nic);
  IsThat(*copy);
  FreeNic(copy);
}

TEST(NicAttr, CopiesWhatHasNothing) {
  fid_nic nothing = {};
  fid_nic* copy = CopyNic(&nothing);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->device_attr, nullptr);
  EXPECT_EQ(copy->link_attr, nullptr);
  FreeNic(copy);
  EXPECT_EQ(CopyNic(nullptr), nullptr);
}

TEST(NicAttr, IsWrittenBehindWhatStandsThere) {
  fid_nic* nic = Nic();
  char text[1024] = "nic:\n";
  ASSERT_EQ(nic->fid.ops->tostr(&nic->fid, text, sizeof(text)), 0);
  EXPECT_EQ(strncmp(text, "nic:\n", 5), 0);
  EXPECT_NE(strstr(text, "name: verbena7\n"), nullptr) << text;
  EXPECT_NE(strstr(text, "state: FI_LINK_UP\n"), nullptr) << text;
  char small[16] = "nic:\n";
  ASSERT_EQ(nic->fid.ops->tostr(&nic->fid, small, sizeof(small)), 0);
  EXPECT_EQ(strnlen(small, sizeof(small)), sizeof(small) - 1) << "cut off, and ended";
  FreeNic(nic);
}

}  // namespace
}  // namespace verbena::fi
