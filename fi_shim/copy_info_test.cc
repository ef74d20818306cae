#include "fi_shim/copy_info.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

namespace verbena::fi {
namespace {

TEST(CopyInfo, CopiesWhatPointersPointAt) {
  fi_info info = {};
  fi_tx_attr tx = {};
  fi_rx_attr rx = {};
  fi_ep_attr ep = {};
  fi_domain_attr domain = {};
  fi_fabric_attr fabric = {};
  uint8_t key[] = {1, 2, 3};
  char domain_name[] = "verbena0", fabric_name[] = "fabric", provider[] = "verbena";
  sockaddr_in source = {};
  source.sin_family = AF_INET;
  tx.size = 17;
  rx.size = 18;
  ep.auth_key = key;
  ep.auth_key_size = sizeof(key);
  domain.name = domain_name;
  fabric.name = fabric_name;
  fabric.prov_name = provider;
  info.tx_attr = &tx;
  info.rx_attr = &rx;
  info.ep_attr = &ep;
  info.domain_attr = &domain;
  info.fabric_attr = &fabric;
  info.src_addr = &source;
  info.src_addrlen = sizeof(source);
  info.next = &info;

  fi_info* copy = CopyInfo(&info);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->next, nullptr);
  EXPECT_NE(copy->tx_attr, &tx);
  EXPECT_EQ(copy->tx_attr->size, 17u);
  EXPECT_EQ(copy->rx_attr->size, 18u);
  ASSERT_NE(copy->ep_attr->auth_key, key);
  EXPECT_EQ(copy->ep_attr->auth_key[2], 3);
  EXPECT_STREQ(copy->domain_attr->name, "verbena0");
  EXPECT_NE(copy->domain_attr->name, domain_name);
  EXPECT_STREQ(copy->fabric_attr->name, "fabric");
  EXPECT_STREQ(copy->fabric_attr->prov_name, "verbena");
  EXPECT_NE(copy->src_addr, &source);
  EXPECT_EQ(copy->src_addrlen, sizeof(source));
  FreeInfo(copy);
}

TEST(CopyInfo, CopiesWhatHasNothing) {
  const fi_info info = {};
  fi_info* copy = CopyInfo(&info);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->ep_attr, nullptr);
  EXPECT_EQ(copy->src_addr, nullptr);
  FreeInfo(copy);
}

TEST(CopyInfo, ExchangesAddresses) {
  const fi_info info = {};
  fi_info* copy = CopyInfo(&info);
  sockaddr_in source = {};
  source.sin_port = 7;
  ASSERT_TRUE(SetAddress(&copy->src_addr, &copy->src_addrlen, &source, sizeof(source)));
  EXPECT_EQ(static_cast<sockaddr_in*>(copy->src_addr)->sin_port, 7);
  ASSERT_TRUE(SetAddress(&copy->src_addr, &copy->src_addrlen, nullptr, 0));
  EXPECT_EQ(copy->src_addrlen, 0u);
  FreeInfo(copy);
}

}  // namespace
}  // namespace verbena::fi
