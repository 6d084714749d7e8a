#pragma once

/// Arithmetic on the expressions of answers, bounded in size and time. An expression is its values
/// at three points: every variable has a number of its own at each, drawn from its name. Two
/// expressions are equal when they agree at all of them; that two different ones do so by chance is
/// as likely as drawing the same 22 bits twice, and for constants there is no chance in it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "data/tasks/math/math_number.h"

namespace jforge {

struct Expression {
  /// Values where all variables are positive, twice, and where all are negative.
  std::array<MathNumber, 3> at;
  /// What it is where it is one name ("x", "\\pi", "f(2)") and nothing else.
  std::string name;
  int infinity = 0;      ///< 1 or -1: plus or minus infinity, and no value.
  bool constant = true;  ///< No variable is in it.
  bool percent = false;  ///< It was written with "%".
  bool degrees = false;  ///< It was written with a degree sign, which counts as 1.
  /// The last point is outside its domain: an even root or a logarithm of something negative.
  bool positive_only = false;
};

/// The operations, with the counter that bounds them. One object serves one comparison.
class MathAlgebra {
 public:
  static constexpr std::int64_t kMaxSteps = 20'000;

  /// Counts work; MathRefusal when more than kMaxSteps were taken in all.
  void spend(std::int64_t steps);
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  [[nodiscard]] Expression number(const MathNumber& value);
  /// "\\pi", "e" and "i" are constants, every other name a variable.
  [[nodiscard]] Expression atom(const std::string& name);
  [[nodiscard]] static Expression infinity();
  [[nodiscard]] Expression add(const Expression& a, const Expression& b);
  [[nodiscard]] Expression subtract(const Expression& a, const Expression& b);
  [[nodiscard]] Expression multiply(const Expression& a, const Expression& b);
  /// MathRefusal when `b` is zero.
  [[nodiscard]] Expression divide(const Expression& a, const Expression& b);
  /// See power() of numbers.
  [[nodiscard]] Expression power(const Expression& base, const Expression& exponent);
  [[nodiscard]] Expression absolute(const Expression& a);
  /// Functions by their names ("sin", "ln"), of degrees where the argument has them; others are
  /// variables named after their argument.
  [[nodiscard]] Expression function(const std::string& name, Expression argument);
  [[nodiscard]] Expression logarithm(const Expression& base, const Expression& argument);

  /// Whether both are the same wherever both are real.
  [[nodiscard]] bool equal(const Expression& a, const Expression& b);
  /// Whether one is a constant times the other, and no constant itself.
  [[nodiscard]] bool proportional(const Expression& a, const Expression& b);

  /// The rational number when there is nothing but one; else null.
  [[nodiscard]] static const mpq_class* as_number(const Expression& a);
  /// A text that equal expressions share, for names.
  [[nodiscard]] static std::string key(const Expression& a);

 private:
  template <typename Operation>
  Expression combine(const Expression& a, const Expression& b, const Operation& operation);
  template <typename Operation>
  Expression change(const Expression& a, const Operation& operation);

  std::int64_t steps_ = 0;
};

}  // namespace jforge
