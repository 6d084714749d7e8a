#include "data/tasks/math/math_number.h"

#include <gtest/gtest.h>

#include "data/tasks/math/math_algebra.h"

namespace jforge {
namespace {

MathNumber rational(const char* text) { return {mpq_class(text)}; }

/// The value, or why there is none.
template <typename Compute>
std::string outcome(const Compute& compute) {
  try {
    return compute().text();
  } catch (const MathRefusal& refusal) {
    return refusal.what();
  }
}

TEST(MathNumber, RationalsStayExact) {
  EXPECT_EQ((rational("1/3") + rational("1/6")).text(), "1/2");
  EXPECT_EQ((rational("1/3") - rational("1/3")).text(), "0");
  EXPECT_EQ((rational("-2/3") * rational("9/4")).text(), "-3/2");
  EXPECT_EQ((rational("2/3") / rational("-4/3")).text(), "-1/2");
  EXPECT_EQ(power(rational("2/3"), -3).text(), "27/8");
  EXPECT_EQ(power(rational("9/4"), rational("3/2")).text(), "27/8");
  EXPECT_EQ(power(rational("-8"), rational("1/3")).text(), "-2");
  EXPECT_EQ(power(rational("-8"), rational("2/3")).text(), "4");
  EXPECT_EQ(absolute(rational("-7/2")).text(), "7/2");
  // A difference of one in six hundred digits.
  const MathNumber large = power(2, 2005);
  EXPECT_FALSE(nearly_equal(large, large + MathNumber(1)));
  EXPECT_TRUE(nearly_equal(large, MathNumber(4) * power(2, 2003)));
}

TEST(MathNumber, FloatsAgreeWithTheirIdentities) {
  const MathNumber root2 = power(2, rational("1/2"));
  const MathNumber i = MathNumber::imaginary_unit();
  EXPECT_TRUE(nearly_equal(root2 * root2, 2));
  EXPECT_EQ(root2.exact(), nullptr);
  EXPECT_TRUE((root2 * root2 - MathNumber(2)).is_zero());
  EXPECT_TRUE(nearly_equal(power(-1, rational("1/2")), i));
  EXPECT_EQ((i * i + MathNumber(1)).sign(), 0);
  EXPECT_EQ(i.sign(), 2);
  EXPECT_TRUE(nearly_equal(MathNumber::pi().apply(mpc_cos), -1));
  EXPECT_TRUE(nearly_equal(logarithm(-1), i * MathNumber::pi()));
  EXPECT_TRUE(nearly_equal(power(i, i), (MathNumber::pi() / MathNumber(-2)).apply(mpc_exp)));
  // 45 digits of the root: they differ from it in the 46th.
  EXPECT_FALSE(nearly_equal(root2, rational("141421356237309504880168872420969807856967187/"
                                            "100000000000000000000000000000000000000000000")));
  EXPECT_EQ((MathNumber(-1) * MathNumber::pi() * MathNumber(-1)).text(), MathNumber::pi().text());
  EXPECT_EQ(MathNumber::pi().text(), "(3.141592653589793238462643383279502884197 +0)");
}

TEST(MathNumber, WhatHasNoValueOrIsTooLargeIsRefused) {
  EXPECT_EQ(outcome([] { return MathNumber(1) / MathNumber(0); }), "division by zero");
  EXPECT_EQ(outcome([] { return power(0, 0); }), "power of zero");
  EXPECT_EQ(outcome([] { return power(0, -1); }), "power of zero");
  EXPECT_EQ(outcome([] { return logarithm(0); }), "no value");
  EXPECT_EQ(outcome([] { return power(2, 200000); }), "numbers too large");
  EXPECT_EQ(outcome([] { return power(MathNumber::pi(), 1000000); }), "numbers too large");
  EXPECT_EQ(outcome([] { return power(3, rational("1000000000000000000000000000001/2")); }),
            "numbers too large");
  EXPECT_EQ(outcome([] { return power(2, 90000) * power(2, 90000); }), "numbers too large");
  EXPECT_EQ(outcome([] { return power(10, 1000).apply(mpc_sin); }), "numbers too large");
}

TEST(MathAlgebra, VariablesAreUnrelatedAndKeepTheirValues) {
  MathAlgebra algebra;
  const auto difference = [&](const char* a, const char* b) {
    return algebra.subtract(algebra.atom(a), algebra.atom(b));
  };
  EXPECT_TRUE(algebra.equal(algebra.atom("x"), algebra.atom("x")));
  for (const char* other : {"y", "z", "X", "x_1", "\\theta", "word x"}) {
    EXPECT_FALSE(algebra.equal(algebra.atom("x"), algebra.atom(other))) << other;
    EXPECT_FALSE(algebra.proportional(difference("x", "a"), difference(other, "b"))) << other;
    EXPECT_FALSE(algebra.proportional(algebra.atom("x"), algebra.atom(other))) << other;
  }
  EXPECT_TRUE(algebra.proportional(difference("x", "a"), difference("a", "x")));
  EXPECT_FALSE(algebra.proportional(algebra.number(1), algebra.number(2)));
  EXPECT_TRUE(algebra.equal(MathAlgebra::infinity(), MathAlgebra::infinity()));
  EXPECT_FALSE(algebra.equal(MathAlgebra::infinity(), algebra.number(5)));
}

}  // namespace
}  // namespace jforge
