#include "data/prompts/record_filter.h"

#include <gtest/gtest.h>

#include "runtime/error.h"

namespace jforge {
namespace {

RecordValue text(const std::string& content) { return {content, parse_number(content)}; }
const RecordValue kList{"", std::nullopt, true};

bool matches(const std::string& rule, const std::optional<RecordValue>& value) {
  return RecordFilter(rule).matches(value);
}

TEST(RecordFilter, NumbersCompareAsNumbersEvenInStrings) {
  EXPECT_TRUE(matches("score >= 1.0", text("1")));
  EXPECT_TRUE(matches("score = 1.0", text("1.00")));
  EXPECT_TRUE(matches("score = 1e1", text("10")));
  EXPECT_FALSE(matches("score > 9", text("10x")));
  EXPECT_TRUE(matches("score > 9", text("10")));  // as text, "10" < "9"
  EXPECT_FALSE(matches("score < 9", text("10")));
  EXPECT_TRUE(matches("score != 1", text("one")));
  EXPECT_FALSE(matches("score = one", text("1")));
  EXPECT_TRUE(matches("score <= -0.5", text(" -0.5 ")));
}

TEST(RecordFilter, TextComparesByBytes) {
  EXPECT_TRUE(matches("level = hard", text("hard")));
  EXPECT_FALSE(matches("level = hard", text("hard ")));
  EXPECT_TRUE(matches("level = very hard", text("very hard")));
  EXPECT_TRUE(matches("level < b", text("a")));
  EXPECT_FALSE(matches("level > b", text("a")));
  EXPECT_FALSE(matches("level = nan", text("x")));
  EXPECT_TRUE(matches("level = nan", text("nan")));
}

TEST(RecordFilter, MissingPathsAndArraysNeverCompare) {
  for (const char* rule : {"a = 1", "a != 1", "a < 1"}) {
    EXPECT_FALSE(matches(rule, std::nullopt)) << rule;
  }
  EXPECT_FALSE(matches("a >= 1", kList));
  EXPECT_FALSE(matches("a = 1", kList));
  EXPECT_TRUE(matches("a != 1", kList));
}

TEST(RecordFilter, MalformedRulesAreRefused) {
  for (const char* rule :
       {"", "a", "a >=", "a>=1", "a => 1", ">= 1", "a == 3", "a in [1, 2]", "a is 3"}) {
    EXPECT_THROW(RecordFilter{rule}, ConfigError) << rule;
  }
  EXPECT_EQ(RecordFilter("  /x/y   >=  2 ").path(), "/x/y");
}

TEST(OrderKey, NumbersThenTextThenMissing) {
  const OrderKey two = order_key(text("2")), ten = order_key(text("10"));
  const OrderKey a = order_key(text("a")), b = order_key(text("b")), none = order_key(std::nullopt);
  EXPECT_TRUE(order_before(two, ten, false));
  EXPECT_FALSE(order_before(ten, two, false));
  EXPECT_TRUE(order_before(ten, two, true));
  EXPECT_TRUE(order_before(a, b, false));
  EXPECT_TRUE(order_before(b, a, true));
  for (const bool descending : {false, true}) {
    EXPECT_TRUE(order_before(ten, a, descending));
    EXPECT_TRUE(order_before(a, none, descending));
    EXPECT_FALSE(order_before(none, two, descending));
    EXPECT_FALSE(order_before(two, two, descending));
    EXPECT_FALSE(order_before(none, none, descending));
  }
}

}  // namespace
}  // namespace jforge
