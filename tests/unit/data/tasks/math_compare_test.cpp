#include "data/tasks/math/math_compare.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "data/tasks/math/math_algebra.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

bool equal(const std::string& gold, const std::string& answer) {
  return compare_math(gold, answer).equal;
}

/// Twice the limit (two readings) and what the last operation before each stop may add.
constexpr std::int64_t kMostSteps = 2 * MathAlgebra::kMaxSteps + 1000;

TEST(MathCompare, HandCheckedTable) {
  const char* source = std::getenv("JFORGE_SOURCE_DIR");
  const fs::path path =
      fs::path(source == nullptr ? "." : source) / "tests/unit/data/tasks/math_pairs.tsv";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << ": run under ctest, or set JFORGE_SOURCE_DIR";
  std::int64_t pairs = 0;
  std::int64_t unequal = 0;
  std::vector<std::string> misses;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("# ")) {
      continue;
    }
    const std::size_t first = line.find('\t');
    const std::size_t second = line.find('\t', first + 1);
    ASSERT_NE(second, std::string::npos) << line;
    const std::string verdict = line.substr(second + 1);
    ASSERT_TRUE(verdict == "equal" || verdict == "unequal") << line;
    ++pairs;
    unequal += verdict == "unequal" ? 1 : 0;
    const auto comparison =
        compare_math(line.substr(0, first), line.substr(first + 1, second - first - 1));
    if (comparison.equal != (verdict == "equal")) {
      misses.push_back(line);
    }
  }
  EXPECT_EQ(misses, std::vector<std::string>{});
  EXPECT_GE(pairs, 660);
  EXPECT_GE(unequal, 260);
}

TEST(MathCompare, HowItWasDecidedIsNamed) {
  EXPECT_EQ(compare_math("\\frac{1}{2}", "\\frac {1} {2}.").rule, "text");
  EXPECT_EQ(compare_math("\\frac{1}{2}", "0.5").rule, "value");
  EXPECT_EQ(compare_math("1{,}000", "1000").rule, "text");
  EXPECT_EQ(compare_math("2\\sqrt{3}", "\\sqrt{12}").rule, "value");
  EXPECT_EQ(compare_math("2", "3").rule, "different");
  EXPECT_EQ(compare_math("2", "1/0").rule, "division by zero");
  EXPECT_EQ(compare_math("2", std::string(5000, '2')).rule, "too long");
}

TEST(MathCompare, EqualityOfValuesIsSymmetric) {
  const std::vector<std::string> values{
      "2\\sqrt{3}",  "\\sqrt{12}", "(1,2)",  "\\{1,2\\}",  "1,2",     "x=5",
      "5",           "50\\%",      "x+1",    "\\frac12",   "0.5",     "\\text{even}",
      "[0,1)",       "0\\le x<1",  "1\\pm2", "-1,3",       "204_5",   "\\sqrt{3+2\\sqrt{2}}",
      "1+\\sqrt{2}", "90^\\circ",  "90",     "x^2+y^2=13", "2^{100}", "4\\cdot2^{98}"};
  for (const std::string& a : values) {
    EXPECT_TRUE(compare_math_values(a, a).equal) << a;
    for (const std::string& b : values) {
      EXPECT_EQ(compare_math_values(a, b).equal, compare_math_values(b, a).equal) << a << " " << b;
    }
  }
}

TEST(MathCompare, ConjugatesAndNearValuesDiffer) {
  EXPECT_TRUE(equal("\\sqrt{5-2\\sqrt{6}}", "\\sqrt{3}-\\sqrt{2}"));
  EXPECT_FALSE(equal("\\sqrt{5-2\\sqrt{6}}", "\\sqrt{2}-\\sqrt{3}"));
  EXPECT_TRUE(equal("\\sqrt{6+2\\sqrt{5}}-\\sqrt{6-2\\sqrt{5}}", "2"));
  EXPECT_FALSE(equal("\\sqrt{6+2\\sqrt{5}}+\\sqrt{6-2\\sqrt{5}}", "2"));
  // They differ by 1e-12: no tolerance may call them equal.
  EXPECT_FALSE(equal("\\sqrt{2}", "1.414213562373"));
  EXPECT_FALSE(equal("\\frac{1}{3}", "0.333333333333333333"));
  EXPECT_FALSE(equal("\\pi", "\\frac{355}{113}"));
}

TEST(MathCompare, WhatCannotBeReadEqualsOnlyItself) {
  for (const char* text : {"\\foo{3}", "((", "\\frac{1}", "3 4 5", "1..2", "\\text{a", "\\begin{x}",
                           "x^", "^2", "\\sqrt", "{", "}", "\\", "_", "\xff\xfe"}) {
    EXPECT_FALSE(equal("5", text)) << text;
    EXPECT_TRUE(equal(text, text)) << text;
  }
  EXPECT_FALSE(equal("", ""));
  EXPECT_FALSE(equal("$", "\\$"));
  EXPECT_FALSE(equal("\\foo 1 2", "\\foo 12"));
}

TEST(MathCompare, HostileAnswersGetAVerdictWithinTheBounds) {
  std::vector<std::string> hostile{
      "9^{9^{9^9}}",
      "9^{9^{9^{9^{9^{9^9}}}}}",
      "2^{2^{2^{2^{2^{2^2}}}}}",
      "1000000!",
      "((5!)!)!",
      "(x+1)^{1000000}",
      "(x+y+z+w+1)^{60}",
      "(a+b+c+d+e+f+g+h)^9",
      "10^{1000000000}+1",
      "x^{10^{30}}",
      "\\binom{1000000}{500000}",
      "170141183460469231731687303715884105728",
      "-170141183460469231731687303715884105728/3",
      "\\sqrt[1000000]{2}",
      "1e99",
      "0^{-1}",
      "\\infty-\\infty",
      "\\frac{1}{\\infty}",
      std::string(4000, '('),
      std::string(4000, '['),
      std::string(2000, '{') + std::string(2000, '}'),
      std::string(4096, '-'),
      std::string(4000, '9'),
      std::string(1 << 20, '{') + std::string(1 << 20, '}'),
      std::string(1 << 20, '7'),
  };
  std::string roots = "1";
  std::string radicals;
  std::string product;
  std::string variables = "x";
  for (int i = 0; i < 64; ++i) {
    roots = "(1+\\sqrt{2+" + roots + "})^5";
    radicals += "\\sqrt{" + std::to_string(i) + "+\\sqrt{3}},";
    product += "(x_{" + std::to_string(i) + "}+1)";
    variables = "\\sqrt{" + variables + "+y}";
  }
  hostile.insert(hostile.end(), {roots, radicals, product, variables});
  for (const std::string& answer : hostile) {
    const auto comparison = compare_math("5", answer);
    EXPECT_FALSE(comparison.equal) << answer.substr(0, 60);
    EXPECT_LE(comparison.steps, kMostSteps) << answer.substr(0, 60);
    if (answer.size() < kMaxMathAnswer - 2) {
      EXPECT_LE(compare_math(answer + "+1", answer).steps, kMostSteps) << answer.substr(0, 60);
    }
  }
  EXPECT_FALSE(equal("9^{9^{9^9}}+1", "9^{9^{9^9}}"));
  EXPECT_FALSE(equal("\\frac{1}{2004!}", "\\frac{1}{2006!}"));
}

TEST(MathCompare, RandomAnswersNeverCrashAndStayWithinTheBounds) {
  const std::vector<std::string> alphabet{"\\frac",
                                          "\\sqrt",
                                          "{",
                                          "}",
                                          "{",
                                          "}",
                                          "(",
                                          ")",
                                          "[",
                                          "]",
                                          "^",
                                          "_",
                                          "1",
                                          "2",
                                          "3",
                                          "9",
                                          "x",
                                          "y",
                                          "i",
                                          "e",
                                          "\\pi",
                                          "+",
                                          "-",
                                          "*",
                                          "/",
                                          "!",
                                          "%",
                                          ",",
                                          "\\pm",
                                          "\\cup",
                                          "=",
                                          "<",
                                          "\\le",
                                          "\\infty",
                                          "\\{",
                                          "\\}",
                                          "\\begin{pmatrix}",
                                          "\\end{pmatrix}",
                                          "&",
                                          "\\\\",
                                          "\\text{",
                                          "sin",
                                          "\\sin",
                                          "\\log",
                                          "|",
                                          ":",
                                          " ",
                                          ".",
                                          "\\left",
                                          "\\right",
                                          "^\\circ",
                                          "10",
                                          "\\overline",
                                          "\\binom",
                                          "\xc3\x28",
                                          "abc",
                                          "and",
                                          "\\cdot",
                                          "\\sqrt[",
                                          "^{",
                                          "\\in",
                                          "\\approx",
                                          "\\mathbb"};
  std::mt19937_64 random(20260101);  // NOLINT(cert-msc51-cpp): the same strings every time
  const auto text = [&](std::size_t longest) {
    std::string result;
    for (std::size_t n = 1 + random() % longest; n > 0; --n) {
      result += alphabet[random() % alphabet.size()];
    }
    return result.substr(0, kMaxMathAnswer);
  };
  for (int round = 0; round < 6000; ++round) {
    const std::string gold = text(25);
    const std::string answer = text(round % 50 == 0 ? 900 : 25);
    EXPECT_LE(compare_math(gold, answer).steps, kMostSteps) << gold << "\t" << answer;
    EXPECT_LE(compare_math_values(answer, answer).steps, kMostSteps) << answer;
    const auto shifted = compare_math_values(answer, "(" + answer + ")+1");
    EXPECT_FALSE(shifted.equal && compare_math_values(answer, "(" + answer + ")+0").equal)
        << answer;
  }
}

}  // namespace
}  // namespace jforge
