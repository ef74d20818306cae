#include "tools/cli/json.h"

#include <gtest/gtest.h>

namespace verbena::cli {
namespace {

TEST(JsonTest, PrettyKeepsOrderAndParsesBack) {
  const json::value value = json::parse(R"({"z":1,"a":[1,{"b":"x\"y"}],"e":[],"o":{}})");
  EXPECT_EQ(PrettyJson(value),
            "{\n  \"z\": 1,\n  \"a\": [\n    1,\n    {\n      \"b\": \"x\\\"y\"\n    }\n  ],\n"
            "  \"e\": [],\n  \"o\": {}\n}\n");
  EXPECT_EQ(json::parse(PrettyJson(value)), value);
}

TEST(JsonTest, Cells) {
  EXPECT_EQ(CellText(json::value("rts")), "rts");
  EXPECT_EQ(CellText(json::value(17)), "17");
  EXPECT_EQ(CellText(json::value(true)), "yes");
  EXPECT_EQ(CellText(json::value(nullptr)), "-");
  EXPECT_EQ(CellText(json::value(0.5)), "0.50");
  EXPECT_EQ(CellText(json::parse(R"(["a",2])")), "a,2");
  EXPECT_EQ(CellText(json::parse(R"({"qp":2,"mr":1})")), "qp 2, mr 1");
}

TEST(JsonTest, FieldsThatAreMissingOrOdd) {
  const json::object object = json::parse(R"({"n":-3,"d":2.9,"s":"x"})").as_object();
  EXPECT_EQ(FieldNumber(object, "n"), 0u);
  EXPECT_EQ(FieldNumber(object, "d"), 2u);
  EXPECT_EQ(FieldNumber(object, "s"), 0u);
  EXPECT_EQ(FieldNumber(object, "none"), 0u);
  EXPECT_EQ(FieldText(object, "none"), "-");
  EXPECT_EQ(FieldText(object, "s"), "x");
}

}  // namespace
}  // namespace verbena::cli
