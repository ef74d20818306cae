#include "fi_shim/cm_data.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace verbena::fi {
namespace {

std::string DataOf(const CmData& data) {
  return std::string(reinterpret_cast<const char*>(data.data), data.bytes);
}
std::string KeyOf(const CmData& data) {
  return std::string(reinterpret_cast<const char*>(data.auth_key), data.auth_key_bytes);
}
const uint8_t* Bytes(const char* text) { return reinterpret_cast<const uint8_t*>(text); }

TEST(CmData, HasTheLengthThatWasGiven) {
  uint8_t wire[kRequestDataBytes];
  EncodeCmData({Bytes("hello"), 5, nullptr, 0}, sizeof(wire), wire);
  const CmData got = DecodeCmData(wire, sizeof(wire));
  EXPECT_EQ(DataOf(got), "hello");
  EXPECT_EQ(got.auth_key_bytes, 0u);
}

TEST(CmData, AVerbsPeerSeesTheDataFirstAndThenZeros) {
  uint8_t wire[kRequestDataBytes];
  EncodeCmData({Bytes("hello"), 5, nullptr, 0}, sizeof(wire), wire);
  EXPECT_EQ(memcmp(wire, "hello\0\0\0", 8), 0);
}

TEST(CmData, CarriesAnAuthorizationKeyBesideTheData) {
  uint8_t wire[kRequestDataBytes];
  EncodeCmData({Bytes("hello"), 5, Bytes("key"), 3}, sizeof(wire), wire);
  const CmData got = DecodeCmData(wire, sizeof(wire));
  EXPECT_EQ(DataOf(got), "hello");
  EXPECT_EQ(KeyOf(got), "key");
}

TEST(CmData, WhatThereIsNoRoomForIsCutOff) {
  const std::string most(DataRoom(kRequestDataBytes, 0), 'x');
  uint8_t wire[kRequestDataBytes];
  EncodeCmData({Bytes(most.c_str()), most.size(), nullptr, 0}, sizeof(wire), wire);
  EXPECT_EQ(DataOf(DecodeCmData(wire, sizeof(wire))), most);
  const std::string more = most + "x";
  EncodeCmData({Bytes(more.c_str()), more.size(), nullptr, 0}, sizeof(wire), wire);
  EXPECT_EQ(DataOf(DecodeCmData(wire, sizeof(wire))), most);
  EncodeCmData({Bytes(most.c_str()), most.size(), Bytes("k"), 1}, sizeof(wire), wire);
  EXPECT_EQ(DataOf(DecodeCmData(wire, sizeof(wire))), most.substr(1));
  EXPECT_EQ(KeyOf(DecodeCmData(wire, sizeof(wire))), "k");
}

TEST(CmData, OfAVerbsPeerAllIsData) {
  uint8_t wire[kRequestDataBytes] = {};
  memcpy(wire, "verbs", 5);
  EXPECT_EQ(DecodeCmData(wire, sizeof(wire)).bytes, sizeof(wire));
  EXPECT_EQ(DecodeCmData(wire, 0).bytes, 0u);
  EXPECT_EQ(DecodeCmData(wire, 3).bytes, 3u);
}

TEST(CmData, LengthsThatDoNotFitAreNotBelieved) {
  uint8_t wire[kRequestDataBytes];
  EncodeCmData({Bytes("hello"), 5, nullptr, 0}, sizeof(wire), wire);
  for (int data_bytes = 0; data_bytes < 256; ++data_bytes) {
    for (int key_bytes = 0; key_bytes < 256; key_bytes += 5) {
      wire[kRequestDataBytes - 4] = static_cast<uint8_t>(data_bytes);
      wire[kRequestDataBytes - 3] = static_cast<uint8_t>(key_bytes);
      const CmData got = DecodeCmData(wire, sizeof(wire));
      ASSERT_LE(got.bytes + got.auth_key_bytes, sizeof(wire));
      if (got.auth_key_bytes != 0) {
        ASSERT_GE(got.auth_key, wire + got.bytes);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::fi
