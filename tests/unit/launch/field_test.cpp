#include "launch/config/field.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace jforge {
namespace {

enum class Colour : std::uint8_t { red, green };
constexpr EnumName<Colour> kColours[] = {{Colour::red, "red"}, {Colour::green, "green"}};

// Returns what was expected, or "" if `text` fits.
template <class T>
std::string read(const std::string& text, T& value) {
  const toml::table table = toml::parse("value = " + text);
  return read_value(*table.get("value"), value).value_or("");
}

template <class T>
void expect_round_trip(const T& value) {
  const auto text = write_value(value);
  ASSERT_TRUE(text.has_value());
  T back{};
  EXPECT_EQ(read(*text, back), "") << *text;
  EXPECT_EQ(back, value) << *text;
}

TEST(Field, ValuesRoundTrip) {
  expect_round_trip(true);
  expect_round_trip(false);
  expect_round_trip(std::int64_t{-7});
  expect_round_trip(std::numeric_limits<std::int64_t>::max());
  expect_round_trip(std::uint64_t{42});
  for (const double value : {0.0, 1.0, -3.0, 0.1, 1e-6, 4e-6, 1e22, 1.0 / 3.0}) {
    expect_round_trip(value);
  }
  for (const float value : {0.95F, 1e-8F, 10.0F, 1.0F / 3.0F}) {
    expect_round_trip(value);
  }
  expect_round_trip(std::string("quotes \" and \\ and\nnew lines, umlauts äöü"));
  expect_round_trip(std::string());
  expect_round_trip(std::filesystem::path("results/runs/a b"));
  expect_round_trip(std::vector<std::string>{"a", "with \"quotes\"", ""});
  expect_round_trip(std::vector<std::string>{});
  expect_round_trip(std::optional<std::int64_t>(5));
  expect_round_trip(TemplateArguments{
      {"enable_thinking", true}, {"date_string", "1 \"Jan\" 2026"}, {"n", std::int64_t{-3}}});
}

TEST(Field, TemplateArgumentsAreATableOfPlainValues) {
  EXPECT_EQ(write_value(TemplateArguments{}), std::nullopt);
  EXPECT_EQ(write_value(TemplateArguments{{"b", false}, {"a", std::int64_t{1}}}),
            "{ a = 1, b = false }");
  TemplateArguments value;
  for (const char* wrong : {"true", "['a=1']", "{a = 1.5}", "{a = [1]}", "{a = 2026-01-31}",
                            "{messages = 'x'}", "{'a b' = 1}"}) {
    EXPECT_THAT(read(wrong, value), testing::HasSubstr("a table of the template's variables"))
        << wrong;
  }
  EXPECT_EQ(value, TemplateArguments{});
}

TEST(Field, AnOptionalThatIsNotSetIsNotWritten) {
  EXPECT_EQ(write_value(std::optional<double>()), std::nullopt);
}

TEST(Field, FloatsAreWrittenInTheirShortForm) {
  EXPECT_EQ(write_value(0.95F), "0.95");
  EXPECT_EQ(write_value(1.0), "1.0");  // TOML would read "1" as a whole number
}

TEST(Field, WrongTypesSayWhatWasExpected) {
  bool flag = false;
  EXPECT_EQ(read("1", flag), "true or false");
  EXPECT_EQ(read("\"true\"", flag), "true or false");
  double number = 0;
  EXPECT_EQ(read("\"1\"", number), "a number");
  std::string text;
  EXPECT_EQ(read("3", text), "a text in quotes");
  std::vector<std::string> texts = {"kept"};
  EXPECT_EQ(read("[\"a\", 3]", texts), "an array of texts");
  EXPECT_EQ(read("\"a\"", texts), "an array of texts");
  EXPECT_THAT(texts, ::testing::ElementsAre("kept"));
}

TEST(Field, WholeNumbersTakeNoFractionsAndKeepTheirRange) {
  std::int32_t small = 1;
  EXPECT_EQ(read("1.5", small), "a whole number");
  EXPECT_EQ(read("2147483648", small), "a whole number from -2147483648 to 2147483647");
  // --set passes large numbers as text.
  EXPECT_EQ(read("\"-99999999999999999999\"", small),
            "a whole number from -2147483648 to 2147483647");
  EXPECT_EQ(read("\"5\"", small), "a whole number");
  EXPECT_EQ(read("true", small), "a whole number");
  std::uint64_t natural = 1;
  EXPECT_EQ(read("-1", natural), "a whole number from 0 to 9223372036854775807");
  EXPECT_EQ(read("1.5", natural), "a whole number that is not negative");
  EXPECT_EQ(small, 1);
  EXPECT_EQ(natural, 1U);
}

TEST(Field, NumbersTakeWholeNumbersToo) {
  double number = 0;
  EXPECT_EQ(read("3", number), "");
  EXPECT_EQ(number, 3.0);
}

TEST(Field, EnumerationsListTheirNames) {
  Colour colour = Colour::red;
  FieldList list;
  list.in("paint");
  list.add_enum("colour", colour, FieldKind::identity, kColours, "");
  const std::vector<ConfigField> fields = list.take();
  ASSERT_EQ(fields.size(), 1U);
  EXPECT_EQ(fields[0].path(), "paint.colour");
  const toml::table table = toml::parse("good = \"green\"\nbad = \"blue\"\nnumber = 1");
  EXPECT_EQ(fields[0].read(*table.get("bad")), "one of \"red\" \"green\"");
  EXPECT_EQ(fields[0].read(*table.get("number")), "one of \"red\" \"green\"");
  EXPECT_EQ(colour, Colour::red);
  EXPECT_EQ(fields[0].read(*table.get("good")), std::nullopt);
  EXPECT_EQ(colour, Colour::green);
  const toml::table written = toml::parse("value = " + fields[0].write().value_or(""));
  EXPECT_EQ(written["value"].value<std::string>(), "green");
}

}  // namespace
}  // namespace jforge
