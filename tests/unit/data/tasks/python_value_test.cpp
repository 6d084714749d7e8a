#include "data/tasks/code/python_value.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/tasks/code/json_tree.h"
#include "runtime/error.h"

namespace jforge {
namespace {

PythonValue value(const std::string& json) {
  const auto parsed = parse_python_value(json);
  EXPECT_TRUE(parsed.has_value()) << json;
  return parsed.value_or(PythonValue{});
}
bool equal(const std::string& left, const std::string& right) {
  const bool there = python_equal(value(left), value(right));
  EXPECT_EQ(there, python_equal(value(right), value(left))) << left << " " << right;
  return there;
}
std::string literal(const std::string& json) {
  const auto node = parse_json(json);
  return node ? python_literal(*node) : "no JSON";
}
bool close(const std::string& out, const std::string& expected, ArrayFit fit, double atol = 1e-6,
           bool nan_is_close = true) {
  return numpy_close(value(out), value(expected), 1e-7, atol, nan_is_close, fit);
}

TEST(JsonTree, ReadsWhatPythonWrites) {
  const auto node =
      parse_json(R"( {"a": [1, -2.5e3, NaN, -Infinity], "b": "\ud83d\ude00\ud800", "a2": {}} )");
  ASSERT_TRUE(node.has_value());
  const JsonNode* list = node->find("a");
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(list->raw, "[1, -2.5e3, NaN, -Infinity]");
  EXPECT_EQ(list->items[3].text, "-Infinity");
  EXPECT_EQ(node->find("b")->text, "\xF0\x9F\x98\x80\xED\xA0\x80");
  EXPECT_EQ(node->find("c"), nullptr);
  EXPECT_EQ(parse_json(R"({"k": 1, "k": 2})")->find("k")->text, "2");
}

TEST(JsonTree, RefusesWhatIsNoJson) {
  for (const char* text : {"",          "  ",          "{",       "[1,]",   "[1 2]",
                           "{\"a\" 1}", "{a: 1}",      "01",      "1.",     "-",
                           "+1",        "1e",          ".5",      "\"\n\"", "\"abc",
                           "\"\\x\"",   "\"\\u12g4\"", "\"\\u12", "tru",    "nul",
                           "[1] x",     "{\"a\":}",    "{,}",     "nan",    "\"\\ud83d\\u12\""}) {
    EXPECT_FALSE(parse_json(text).has_value()) << text;
  }
  EXPECT_FALSE(parse_json(std::string(100000, '[')).has_value());
  EXPECT_TRUE(parse_json(std::string(300, '[') + std::string(300, ']')).has_value());
}

TEST(JsonTree, EveryCutOfARecordIsRefused) {
  const std::string record = R"({"task_id": "x", "n": [1.5, "\u00e9"], "t": true})";
  for (std::size_t size = 0; size < record.size(); ++size) {
    EXPECT_FALSE(parse_json(record.substr(0, size)).has_value()) << size;
  }
}

TEST(PythonLiteral, IsWhatPythonReads) {
  EXPECT_EQ(literal(R"([1, 12345678901234567890123, -0.5, 1e5, true, false, null])"),
            "[1, 12345678901234567890123, -0.5, 1e5, True, False, None]");
  EXPECT_EQ(literal("[Infinity, -Infinity, NaN]"), "[float('inf'), float('-inf'), float('nan')]");
  EXPECT_EQ(literal(R"({"a'b": "c\\d\n"})"), R"({'a\'b': 'c\\d\U0000000a'})");
  EXPECT_EQ(literal(R"("é\ud800😀")"), R"('\U000000e9\U0000d800\U0001f600')");
  EXPECT_EQ(literal("[[], {}]"), "[[], {}]");
}

TEST(PythonLiteral, TextThatIsNoUtf8IsRefusedWithinItsBounds) {
  for (const char* bytes :
       {"\xED", "\xED\xA0", "\xED\xA0\x41", "\xF0\x9F", "\xC3", "\x80", "a\xE2\x82", "\xFF"}) {
    JsonNode node;
    node.kind = JsonNode::Kind::text;
    node.text = bytes;
    EXPECT_THROW((void)python_literal(node), DataError) << bytes;
    EXPECT_THROW((void)python_elements(python_value(node)), DataError) << bytes;
  }
  EXPECT_EQ(literal(R"("\ud800")"), R"('\U0000d800')");
}

TEST(PythonValue, ReadsTheWireForm) {
  EXPECT_EQ(value("null").kind, PythonValue::Kind::none);
  EXPECT_EQ(value(R"({"int": "-0"})").text, "0");
  EXPECT_EQ(value(R"({"int": "-007"})").text, "-7");
  EXPECT_TRUE(std::isinf(value(R"({"float": "-inf"})").real));
  EXPECT_EQ(value(R"({"complex": ["1.0", "-2.5"]})").imaginary, -2.5);
  EXPECT_EQ(value(R"({"str_utf16": "0061d800"})").text, "a\xED\xA0\x80");
  EXPECT_EQ(value(R"({"dict": [["a", {"int": "1"}]]})").items.size(), 2u);
  EXPECT_EQ(value(R"({"other": "generator"})").text, "generator");
}

TEST(PythonValue, RefusesForgedForms) {
  for (const char* json : {"",
                           "1",
                           "1.5",
                           "{}",
                           R"({"int": "x"})",
                           R"({"int": ""})",
                           R"({"int": "1.5"})",
                           R"({"int": 1})",
                           R"({"float": "abc"})",
                           R"({"float": "1.0 "})",
                           R"({"float": ""})",
                           R"({"complex": ["1.0"]})",
                           R"({"tuple": "a"})",
                           R"({"tuple": {"a": null}})",
                           R"({"dict": [["a"]]})",
                           R"({"dict": {"a": null}})",
                           R"({"str_utf16": "00"})",
                           R"({"unknown": "a"})",
                           R"({"int": "1", "float": "2"})",
                           "[1]",
                           "[null",
                           "\"\xFF\"",
                           "\"\xED\xA0\""}) {
    EXPECT_FALSE(parse_python_value(json).has_value()) << json;
  }
}

TEST(PythonEqual, NumbersAreComparedExactly) {
  EXPECT_TRUE(equal("true", R"({"int": "1"})"));
  EXPECT_TRUE(equal("false", R"({"float": "-0.0"})"));
  EXPECT_TRUE(equal(R"({"int": "3"})", R"({"float": "3.0"})"));
  EXPECT_TRUE(equal(R"({"float": "3.0"})", R"({"complex": ["3.0", "0.0"]})"));
  EXPECT_TRUE(
      equal(R"({"int": "1180591620717411303424"})", R"({"float": "1.1805916207174113e+21"})"));
  EXPECT_FALSE(
      equal(R"({"int": "1180591620717411303425"})", R"({"float": "1.1805916207174113e+21"})"));
  EXPECT_FALSE(equal(R"({"int": "9007199254740993"})", R"({"float": "9007199254740992.0"})"));
  EXPECT_FALSE(equal(R"({"float": "nan"})", R"({"float": "nan"})"));
  EXPECT_FALSE(equal(R"({"int": "0"})", "null"));
  EXPECT_FALSE(equal(R"({"int": "1"})", R"("1")"));
  EXPECT_FALSE(equal(R"({"complex": ["3.0", "1.0"]})", R"({"int": "3"})"));
}

TEST(PythonEqual, ContainersKeepTheirType) {
  EXPECT_TRUE(equal(R"([true, {"int": "2"}])", R"([{"int": "1"}, {"float": "2.0"}])"));
  EXPECT_FALSE(equal(R"([null])", R"({"tuple": [null]})"));
  EXPECT_FALSE(equal(R"([null])", R"([null, null])"));
  EXPECT_TRUE(equal(R"({"set": ["a", "b"]})", R"({"set": ["b", "a"]})"));
  EXPECT_FALSE(equal(R"({"set": ["a", "b"]})", R"({"set": ["b", "c"]})"));
  EXPECT_TRUE(equal(R"({"dict": [["a", null], [{"int": "1"}, "x"]]})",
                    R"({"dict": [[true, "x"], ["a", null]]})"));
  EXPECT_FALSE(equal(R"({"dict": [["a", null]]})", R"({"dict": [["a", "x"]]})"));
  EXPECT_FALSE(equal(R"({"dict": [["a", null]]})", R"({"dict": [["a", null], ["b", null]]})"));
  EXPECT_FALSE(equal(R"({"bytes": "61"})", R"("a")"));
  EXPECT_FALSE(equal(R"({"other": "map"})", R"({"other": "map"})"));
  EXPECT_FALSE(equal(R"({"array": [{"int": "1"}]})", R"({"array": [{"int": "1"}]})"));
}

TEST(NumpyClose, ToleratesWhatNumpyTolerates) {
  constexpr auto kAssert = ArrayFit::same_shape_or_scalar;
  EXPECT_TRUE(close(R"({"float": "1.0000009"})", R"({"int": "1"})", kAssert));
  EXPECT_FALSE(close(R"({"float": "1.0000012"})", R"({"int": "1"})", kAssert));
  EXPECT_TRUE(close(R"({"int": "10000001"})", R"({"int": "10000000"})", kAssert));  // rtol
  EXPECT_FALSE(close(R"({"int": "10000003"})", R"({"int": "10000000"})", kAssert));
  EXPECT_TRUE(close("true", R"({"int": "1"})", kAssert));
  EXPECT_TRUE(close(R"({"complex": ["1.0", "1e-9"]})", R"({"float": "1.0"})", kAssert));
  EXPECT_TRUE(close(R"({"float": "inf"})", R"({"float": "inf"})", kAssert));
  EXPECT_FALSE(close(R"({"float": "inf"})", R"({"float": "-inf"})", kAssert));
  EXPECT_FALSE(close(R"({"float": "1.0"})", R"({"float": "inf"})", kAssert));
  EXPECT_TRUE(close(R"({"float": "nan"})", R"({"float": "nan"})", kAssert));
  EXPECT_FALSE(close(R"({"float": "nan"})", R"({"float": "nan"})", kAssert, 1e-6, false));
  EXPECT_FALSE(close(R"({"float": "nan"})", R"({"float": "1.0"})", kAssert));
}

TEST(NumpyClose, WhatIsNoArrayOfNumbersIsNeverClose) {
  for (const auto fit : {ArrayFit::same_shape_or_scalar, ArrayFit::broadcast}) {
    for (const char* json :
         {"null", R"("a")", R"(["a"])", R"({"set": []})", R"({"dict": []})", R"({"other": "map"})",
          R"([[null], null])", R"([[true], [true, true]])", R"({"int": "18446744073709551616"})"}) {
      EXPECT_FALSE(close(json, json, fit)) << json;
    }
  }
}

TEST(NumpyClose, ShapesFitAsTheTwoFunctionsDemand) {
  const auto both = [](const char* left, const char* right) {
    return std::pair(close(left, right, ArrayFit::same_shape_or_scalar),
                     close(left, right, ArrayFit::broadcast));
  };
  EXPECT_EQ(both("[true, true]", R"({"tuple": [true, true]})"), std::pair(true, true));
  EXPECT_EQ(both("true", "[true, true]"), std::pair(true, true));
  EXPECT_EQ(both("true", "[]"), std::pair(true, true));
  EXPECT_EQ(both("[true]", "[true, true]"), std::pair(false, true));
  EXPECT_EQ(both("[[true, false]]", "[[true, false], [true, false]]"), std::pair(false, true));
  EXPECT_EQ(both("[[true], [false]]", "[[true, true], [false, false]]"), std::pair(false, true));
  EXPECT_EQ(both("[[true], [false]]", "[[true, true], [false, true]]"), std::pair(false, false));
  EXPECT_EQ(both("[true, true, true]", "[true, true]"), std::pair(false, false));
}

TEST(PythonSets, AreMadeOfWhatIsIterableAndHashable) {
  const auto same = [](const char* left, const char* right) {
    return python_set_equal(value(left), value(right));
  };
  EXPECT_TRUE(same(R"(["a", "b", "a"])", R"({"tuple": ["b", "a"]})"));
  EXPECT_TRUE(same(R"("aé")", R"(["é", "a", "a"])"));
  EXPECT_TRUE(same(R"({"dict": [["a", null]]})", R"(["a"])"));
  EXPECT_TRUE(same(R"([{"tuple": [true]}])", R"([{"tuple": [{"int": "1"}]}])"));
  EXPECT_FALSE(same(R"([["a"]])", R"([["a"]])"));
  EXPECT_FALSE(same(R"([{"tuple": [["a"]]}])", R"([{"tuple": [["a"]]}])"));
  EXPECT_FALSE(same("null", "null"));
  EXPECT_FALSE(same(R"(["a"])", R"(["a", "b"])"));
  EXPECT_FALSE(same(R"(["a", "b"])", R"(["a"])"));
}

}  // namespace
}  // namespace jforge
