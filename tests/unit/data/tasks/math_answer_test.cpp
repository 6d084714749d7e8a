#include "data/tasks/math/math_answer.h"

#include <gtest/gtest.h>

#include "data/tasks/math/answer_number.h"

namespace jforge {
namespace {

std::string found(std::string_view completion, MathAnswerForm form = MathAnswerForm::boxed) {
  const auto answer = find_math_answer(completion, form);
  return answer ? std::string(answer->rule) + ":" + answer->text : "none";
}

TEST(FindMathAnswer, RulesInTheirOrder) {
  EXPECT_EQ(found("so $\\boxed{\\frac{1}{2}}$."), "boxed:\\frac{1}{2}");
  EXPECT_EQ(found("first \\boxed{1} then \\fbox{2}"), "boxed:2");
  EXPECT_EQ(found("\\boxed{ $7$. }"), "boxed: $7$. ");
  EXPECT_EQ(found("thus $\\boxed 5$ holds"), "boxed:5");
  EXPECT_EQ(found("Final Answer: The final answer is $\\frac34$. I hope it is correct."),
            "minerva:\\frac34");
  EXPECT_EQ(found("Final Answer: The final answer is $96$."), "minerva:96");
  EXPECT_EQ(found("The Answer is: **12**. Done"), "answer-is:12");
  EXPECT_EQ(found("the answer is 3. No, the answer is 3.5."), "answer-is:3.5");
  EXPECT_EQ(found("work\n#### 42\n"), "marked:42");
  EXPECT_EQ(found("\\boxed{1} The answer is 2 #### 3"), "boxed:1");
  EXPECT_EQ(found("The answer is 2\n#### 3"), "answer-is:2");
  EXPECT_EQ(found("\\boxed{} The answer is 2"), "answer-is:2");
  EXPECT_EQ(found("The final answer is $2+3=\\boxed{5}$", MathAnswerForm::minerva), "minerva:5");
  EXPECT_EQ(found("The answer is 5\\$."), "answer-is:5");
  EXPECT_EQ(found("nothing here"), "none");
  EXPECT_EQ(found(""), "none");
  const char* both = "\\boxed{1}. Final Answer: The final answer is $2$. I hope it is correct.";
  EXPECT_EQ(found(both), "boxed:1");
  EXPECT_EQ(found(both, MathAnswerForm::minerva), "minerva:2");
  EXPECT_EQ(found("\\boxed{1}", MathAnswerForm::minerva), "boxed:1");
}

TEST(LastBoxed, BracesEscapesAndBoxesThatDoNotClose) {
  EXPECT_EQ(last_boxed("\\boxed{\\left\\{ x \\right.}"), "\\left\\{ x \\right.");
  EXPECT_EQ(last_boxed("\\boxed{\\{1,2\\}}"), "\\{1,2\\}");
  EXPECT_EQ(last_boxed("\\boxed{a \\\\} b}"), "a \\\\");
  EXPECT_EQ(last_boxed("\\boxed {3}"), "3");
  EXPECT_EQ(last_boxed("\\\\boxed{3}"), "3");
  EXPECT_EQ(last_boxed("\\boxed{7} and \\boxed{8"), "7");
  EXPECT_EQ(last_boxed("\\boxed{1 + \\boxed{2}}"), "2");
  EXPECT_EQ(last_boxed("} \\boxed{4}"), "4");
  EXPECT_EQ(last_boxed("\\boxed{4} inside \\boxed."), "4");
  EXPECT_EQ(last_boxed("\\boxedness{4}"), std::nullopt);
}

TEST(LastBoxed, MegabytesOfBracesTakeOnePass) {
  constexpr std::size_t kMany = 1 << 20;
  EXPECT_EQ(last_boxed(std::string(kMany, '{') + "\\boxed{5}"), "5");
  EXPECT_EQ(
      last_boxed("\\boxed{" + std::string(kMany, '{') + std::string(kMany, '}') + "}")->size(),
      2 * kMany);
  std::string open;
  std::string phrase;
  for (std::size_t i = 0; i < kMany / 8; ++i) {
    open += "\\boxed{";
    phrase += "answer is ";
  }
  EXPECT_EQ(last_boxed(open), std::nullopt);
  EXPECT_FALSE(find_math_answer(phrase, MathAnswerForm::boxed).has_value());
}

TEST(StringRule, SpellingsOfOneAnswer) {
  for (const char* text :
       {"\\frac{1}{2}", "\\frac12", "\\dfrac{1}{2}", "\\tfrac12", "1/2", "0.5", ".5", "x=\\frac12",
        "k = 1/2", "\\left\\frac{1}{2}\\right", "\\frac{1}{2}^\\circ", "\\$\\frac12",
        "\\frac{1}{2}\\text{ cm}", "\\frac{1}{2}\\%", " 1/2 "}) {
    EXPECT_TRUE(string_equal("\\frac{1}{2}", text)) << text;
  }
  EXPECT_TRUE(string_equal("2\\sqrt{3}", "2\\sqrt3"));
  EXPECT_TRUE(string_equal("(1, 2)", "(1,2)"));
  EXPECT_TRUE(string_equal("\\frac1{72}", "\\frac{1}{72}"));
  EXPECT_FALSE(string_equal("\\frac{1}{2}", "\\frac{1}{3}"));
  EXPECT_FALSE(string_equal("abc=5", "5"));
  EXPECT_FALSE(string_equal("5", "$5$"));
  EXPECT_FALSE(string_equal("5", "5."));
  EXPECT_FALSE(string_equal("1000", "1,000"));
}

/// The published program's verdicts.
TEST(StringRule, ErrsAsTheOriginalDoes) {
  EXPECT_TRUE(string_equal("112/3", "11 2/3"));
  EXPECT_TRUE(string_equal("x=5", "y=5"));
  EXPECT_TRUE(string_equal("5", "x<=5"));  // "x<" are two characters
  EXPECT_TRUE(string_equal("\u03c0=5", "5"));
  EXPECT_TRUE(string_equal("5\\text{ cm}", "5\\text{ m}"));
  EXPECT_TRUE(string_equal("5", "5\\text{ million}"));
  EXPECT_TRUE(string_equal("5", "5\\text{ or }6"));
  // Where it fails, both must have the same bytes.
  EXPECT_FALSE(string_equal("\\frac{x}{2}", "x/2"));
  EXPECT_FALSE(string_equal("x/2", "x /2"));
  EXPECT_TRUE(string_equal("x/2", "x/2"));
  EXPECT_FALSE(string_equal("2\\sqrt", "2 \\sqrt"));
  EXPECT_FALSE(string_equal("\\frac", "\\frac "));
  EXPECT_FALSE(string_equal("5\\text{ a}\\text{ b}", "5"));
  EXPECT_FALSE(string_equal("\\frac{+3}{4}", "+3/4"));
  EXPECT_TRUE(string_equal("+3/4", "+3 /4"));
  EXPECT_TRUE(string_equal("03/4", "03/ 4"));
  EXPECT_TRUE(string_equal("\\frac1", "\\frac 1"));
  EXPECT_TRUE(string_equal("1/2/3", "1/2 /3"));
  EXPECT_TRUE(string_equal("\\frac{-3}{4}", "-3/4"));
}

TEST(MinervaRule, SpellingsAndErrorsOfTheOriginal) {
  EXPECT_TRUE(minerva_equal("1,000", "1000"));
  EXPECT_TRUE(minerva_equal("10{,}080", "10080"));
  EXPECT_TRUE(minerva_equal("18\\text{ ways}", "18"));
  EXPECT_TRUE(minerva_equal("100\\text{ square units}", "100"));
  EXPECT_TRUE(minerva_equal("12\\text{ and }13", "12,13"));
  EXPECT_TRUE(minerva_equal("y=2x+3", "2x+3"));
  EXPECT_TRUE(minerva_equal("so $\\frac12$ it is", "\\frac{1}{2}"));
  EXPECT_TRUE(minerva_equal("\\boxed{5}", "5"));
  EXPECT_TRUE(minerva_equal("\\text{Evelyn}", "Evelyn"));
  EXPECT_TRUE(minerva_equal("sqrt3", "sqrt{3}"));
  EXPECT_TRUE(minerva_equal("12130", "12, 130"));
  EXPECT_TRUE(minerva_equal("5\\text{ cm}", "5\\text{ km}"));
  EXPECT_TRUE(minerva_equal("0.\\overline{3}", "0.3"));
  EXPECT_TRUE(minerva_equal("x=5", "y=5"));
  EXPECT_FALSE(minerva_equal("18.", "18"));
  EXPECT_FALSE(minerva_equal("0.5", "\\frac{1}{2}"));
  EXPECT_FALSE(minerva_equal("\\dfrac{1}{2}", "\\frac{1}{2}"));
  EXPECT_FALSE(minerva_equal("(1, 000)", "(1000)"));
}

TEST(StringRules, LongAnswersTakeOnePass) {
  std::string text;
  for (int i = 0; i < 100000; ++i) {
    text += "\\sqrt2\\frac12\\text{a}$";
  }
  EXPECT_TRUE(string_equal(text, text));
  EXPECT_TRUE(minerva_equal(text, text));
}

}  // namespace
}  // namespace jforge
