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

TEST(CanonicalNumber, CharactersBeyondAscii) {
  EXPECT_EQ(canonical_number("\u22125"), "-5");
  EXPECT_EQ(canonical_number("\uff0d\uff15\uff0e\uff12"), "-5.2");
  EXPECT_EQ(canonical_number("1\u00a0234"), "1234");
  EXPECT_EQ(canonical_number("1\u202f234"), "1234");
  EXPECT_EQ(canonical_number("\uff11\uff0c\uff12\uff13\uff14"), "1234");
  EXPECT_EQ(canonical_number("\u200b7"), "7");
  EXPECT_EQ(canonical_number("\u00e95"), std::nullopt);
  EXPECT_EQ(leading_number("\u22123 apples"), "-3");
  EXPECT_EQ(last_number("it is \u22125 degrees"), "-5");
  EXPECT_EQ(last_number("from 3\u20135"), "5");
  EXPECT_EQ(last_number("\uff11\uff12 apples"), "12");
  EXPECT_EQ(plain_characters("\xe2\x88"), "\xe2\x88");
  EXPECT_EQ(plain_characters("\xff\xc2"), "\xff\xc2");
  EXPECT_EQ(plain_characters("\u00e9\u4e00"), "\u00e9\u4e00");
}

TEST(CanonicalNumber, WordsThatScale) {
  EXPECT_EQ(canonical_number("6 million"), "6000000");
  EXPECT_EQ(canonical_number("$2.5 billion"), "2500000000");
  EXPECT_EQ(canonical_number("-1,5 hundred"), "-1500");
  EXPECT_EQ(canonical_number("6 millions"), std::nullopt);
  EXPECT_EQ(canonical_number("1/3 million"), std::nullopt);
  EXPECT_EQ(canonical_number("million"), std::nullopt);
  EXPECT_EQ(last_number("It cost $6 million."), "6000000");
  EXPECT_EQ(last_number("It cost 6 millionaires"), "6");
  EXPECT_EQ(boxed_number("6\\text{ million}"), "6000000");
  EXPECT_EQ(boxed_number("6\\text{ million dollars}"), "6000000");
  EXPECT_EQ(boxed_number("\\$1.25 \\text{ million}"), "1250000");
}

TEST(BoxedNumber, AnExpressionIsNotItsLastNumber) {
  for (const char* box : {"5 - 3",
                          "5-3",
                          "5 \u2212 3",
                          "3 \\times 4",
                          "3*4",
                          "3 x 4",
                          "2\\sqrt{3}",
                          "\\sqrt{16}",
                          "x = 5 - 3",
                          "2^3",
                          "(3)/(4)",
                          "4\\cdot5",
                          "12 \\div 4",
                          "2\\pi",
                          "3 \u00d7 4",
                          "\\frac{3+4}{2}",
                          "x + 5",
                          "\\$5 + \\$3",
                          "5 - 3 \\text{ apples}",
                          "x^23"}) {
    EXPECT_TRUE(is_unevaluated(box)) << box;
    EXPECT_EQ(boxed_number(box), std::nullopt) << box;
  }
  EXPECT_EQ(boxed_number("5 - 3 = 2"), "2");
  EXPECT_EQ(boxed_number("10/3 \\approx 3.33"), "3.33");
  EXPECT_EQ(boxed_number("x = -5"), "-5");
  EXPECT_EQ(boxed_number("\\text{Loss} -5"), "-5");
  EXPECT_EQ(boxed_number("5 twenty-dollar bills"), "5");
  EXPECT_EQ(boxed_number("90^\\circ"), "90");
  EXPECT_EQ(boxed_number("90^{\\circ}"), "90");
  EXPECT_EQ(boxed_number("60 miles/hour"), "60");
  EXPECT_EQ(boxed_number("**5**"), "5");
  EXPECT_EQ(boxed_number("\\frac{1}{2}"), "0.5");
}

TEST(BoxedNumber, MixedNumbers) {
  EXPECT_EQ(boxed_number("2\\frac{1}{2}"), "2.5");
  EXPECT_EQ(boxed_number("2 1/2"), "2.5");
  EXPECT_EQ(boxed_number("-1\\dfrac{3}{4}"), "-1.75");
  EXPECT_EQ(boxed_number("3 4/2"), "2");  // not a proper fraction: two numbers
  EXPECT_EQ(boxed_number("\\$2\\frac{1}{4}"), "2.25");
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

// Repeated scans would take minutes.
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
  EXPECT_EQ(plain_latex(fractions).size(), 4 * kMany - 1);  // blanks keep them apart
  EXPECT_EQ(plain_latex(signs).size(), 2 * kMany);
}

}  // namespace
}  // namespace jforge
