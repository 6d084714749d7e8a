#include "runtime/bounded_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "runtime/error.h"
#include "tests/support/message_of.h"

namespace jforge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string nested(std::size_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) {
    text += open;
  }
  text += '1';
  for (std::size_t i = 0; i < depth; ++i) {
    text += close;
  }
  return text;
}

std::string refusal(const std::string& text) {
  return test::message_of<DataError>([&] { return parse_bounded_json(text, "dir/a.json"); });
}

TEST(BoundedJson, DepthIsBoundedInObjectsArraysAndBoth) {
  for (const auto& [open, close] :
       std::vector<std::pair<std::string, std::string>>{{"[", "]"}, {"{\"a\":", "}"}}) {
    const std::string deepest = nested(kMaxJsonDepth, open, close);
    EXPECT_EQ(parse_bounded_json(deepest, "f").size(), 1U);
    EXPECT_FALSE(try_bounded_json(deepest).is_discarded());
    for (const std::size_t depth : {kMaxJsonDepth + 1, std::size_t{100'000}}) {
      const std::string deep = nested(depth, open, close);
      EXPECT_EQ(refusal(deep), "dir/a.json: not valid JSON: nested more than 64 levels deep");
      EXPECT_TRUE(try_bounded_json(deep).is_discarded());
      EXPECT_TRUE(try_bounded_json<nlohmann::ordered_json>(deep).is_discarded());
    }
  }
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("levels deep"));
}

TEST(BoundedJson, OnlyOpenBracketsOutsideOfStringsCount) {
  const std::string in_string = R"(["\\", "\"[[[[", ")" + std::string(1000, '[') + R"(\""])";
  EXPECT_FALSE(nested_deeper_than(in_string, 1));
  EXPECT_EQ(parse_bounded_json(in_string, "f").size(), 3U);
  std::string beside = "[";
  for (int i = 0; i < 1000; ++i) {
    beside += "[],";
  }
  EXPECT_EQ(parse_bounded_json(beside + "0]", "f").size(), 1001U);
  EXPECT_FALSE(nested_deeper_than("]]]]", 0));
  EXPECT_FALSE(nested_deeper_than("\"[\\", 0));
}

TEST(BoundedJson, ARefusalIsOneShortLine) {
  EXPECT_EQ(try_bounded_json("{").is_discarded(), true);
  for (const std::string& text :
       {std::string("{"), std::string(), "[" + std::string(1'000'000, 'x'),
        "[\n\"" + std::string(1'000'000, 'y') + "\n\"]", std::string("[\"\xff\"]")}) {
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("dir/a.json: not valid JSON: "),
                                     Not(HasSubstr("\n")), SizeIs(testing::Lt(300U))));
  }
}

TEST(BoundedJson, AnIntegerIsExactOrRefused) {
  const auto parsed = [](const char* text) { return parse_bounded_json(text, "f"); };
  EXPECT_EQ(json_integer<std::int64_t>(parsed("-9223372036854775808")),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(json_integer<std::uint64_t>(parsed("18446744073709551615")),
            std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(json_integer<int>(parsed("-7")), -7);
  for (const char* text : {"1.0", "1e300", "-1e300", "1e3", "\"1\"", "true", "null", "[1]",
                           "2147483648", "-2147483649", "18446744073709551615"}) {
    EXPECT_THROW((void)json_integer<std::int32_t>(parsed(text)), nlohmann::json::exception) << text;
  }
  EXPECT_THROW((void)json_integer<std::uint64_t>(parsed("-1")), nlohmann::json::exception);
}

}  // namespace
}  // namespace jforge
