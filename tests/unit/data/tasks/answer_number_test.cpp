#include "data/tasks/math/answer_number.h"

#include <gtest/gtest.h>

namespace jforge {
namespace {

TEST(CanonicalNumber, EqualNumbersHaveOneForm) {
  for (const char* text :
       {"12", "12.0", "12.", "012", "+12", "$12", " 12 ", "12%", "24/2", "12.000"}) {
    EXPECT_EQ(canonical_number(text), "12") << text;
  }
  EXPECT_EQ(canonical_number("1,234,567.50"), "1234567.5");
  EXPECT_EQ(canonical_number("-0.0"), "0");
  EXPECT_EQ(canonical_number("-.5"), "-0.5");
  EXPECT_EQ(canonical_number("1/2"), "0.5");
  EXPECT_EQ(canonical_number("-7/8"), "-0.875");
  EXPECT_EQ(canonical_number("2/6"), "1/3");
  EXPECT_EQ(canonical_number("0/9"), "0");
  EXPECT_EQ(canonical_number("123456789012345678901234567890.10"),
            "123456789012345678901234567890.1");
}

TEST(CanonicalNumber, WhatIsNoNumberIsNothing) {
  for (const char* text : {"", "$", "-", ".", "%", "a", "1a", "1.2.3", "1/0", "1/2/3", "/2", "1/",
                           "1.5/2", "1e5", "--1", "1234567890123456789/2"}) {
    EXPECT_EQ(canonical_number(text), std::nullopt) << text;
  }
}

TEST(NumbersInText, FirstAndLast) {
  EXPECT_EQ(leading_number("$1,200.50 and 3 cats."), "1200.5");
  EXPECT_EQ(leading_number("-3/4"), "-0.75");
  EXPECT_EQ(leading_number("He has 3"), std::nullopt);
  EXPECT_EQ(leading_number("- 3"), std::nullopt);
  EXPECT_EQ(leading_number(""), std::nullopt);
  EXPECT_EQ(last_number("He has $1,200.50 and 3 cats."), "3");
  EXPECT_EQ(last_number("The total is 42."), "42");
  EXPECT_EQ(last_number("it is -5 degrees"), "-5");
  EXPECT_EQ(last_number("from 3-5"), "5");
  EXPECT_EQ(last_number("10 - 4 = 6, so $6."), "6");
  EXPECT_EQ(last_number("owes -$7"), "-7");
  EXPECT_EQ(last_number("owes $-7"), "-7");
  EXPECT_EQ(last_number("he ate 3/4 of it"), "0.75");
  EXPECT_EQ(last_number("1, 2, 3, and"), "3");
  EXPECT_EQ(last_number("no number - at all . $"), std::nullopt);
  EXPECT_EQ(last_number(""), std::nullopt);
  EXPECT_EQ(last_number("x=2 or 1/0"), "2");
}

TEST(Boxed, LastOneThatCloses) {
  EXPECT_EQ(last_boxed("a \\boxed{1} b \\boxed{\\frac{1}{2}} c"), "\\frac{1}{2}");
  EXPECT_EQ(last_boxed("\\boxed{7} and \\boxed{8"), "7");
  EXPECT_EQ(last_boxed("\\boxed{8"), std::nullopt);
  EXPECT_EQ(last_boxed("nothing"), std::nullopt);
  EXPECT_EQ(last_boxed("\\boxed{}"), "");
}

TEST(PlainLatex, FractionsSignsAndSpaces) {
  EXPECT_EQ(plain_latex("\\dfrac{3}{4}"), "3/4");
  EXPECT_EQ(plain_latex("\\$1{,}200\\%"), "$1,200%");
  EXPECT_EQ(plain_latex("10\\!,000"), "10,000");
  EXPECT_EQ(plain_latex("\\frac{1"), "\\frac{1");
  EXPECT_EQ(plain_latex("\\frac{1}{2}, \\tfrac{3}{4} \\frac{5"), "1/2, 3/4 \\frac{5");
}

TEST(Boxed, LinesWithoutBracesEndWhereTheyShould) {
  EXPECT_EQ(last_boxed("\\boxed 1 $ \\boxed 2\n3"), "2");
  EXPECT_EQ(last_boxed("\\boxed 1 \\boxed 2 $ 3"), "2 ");
  EXPECT_EQ(last_boxed("\\boxed 1 \\boxed$ 3"), "1 \\boxed");
}

// Megabytes on one line: with a scan or a shift for each command these take minutes.
TEST(Boxed, ManyCommandsOnOneLineTakeOnePass) {
  constexpr std::size_t kMany = 600000;
  std::string boxes;
  std::string fractions;
  std::string signs;
  for (std::size_t i = 0; i < kMany; ++i) {
    boxes += "\\boxed 5 ";
    fractions += "\\frac{1}{2}";
    signs += "\\%\\,{,}";
  }
  EXPECT_EQ(last_boxed(boxes), "5 ");
  EXPECT_EQ(plain_latex(fractions).size(), 3 * kMany);
  EXPECT_EQ(plain_latex(signs).size(), 2 * kMany);
}

}  // namespace
}  // namespace jforge
