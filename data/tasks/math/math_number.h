#pragma once

/// Numbers of answers: exact rationals (GMP) as long as they stay so, complex floating point (MPC)
/// from the first irrational operation on.

#include <gmpxx.h>
#include <mpc.h>

#include <cstdint>
#include <exception>
#include <string>
#include <variant>

namespace jforge {

/// An answer is not readable, or too large for the bounds below. Caught in math_compare: such an
/// answer equals nothing but itself.
class MathRefusal final : public std::exception {
 public:
  explicit MathRefusal(const char* why) : why_(why) {}
  [[nodiscard]] const char* what() const noexcept override { return why_; }

 private:
  const char* why_;  ///< A literal.
};

/// Owner of an mpc_t.
class ComplexFloat {
 public:
  static constexpr mpfr_prec_t kBits = 320;

  ComplexFloat() { mpc_init2(value_, kBits); }
  ComplexFloat(const ComplexFloat& other) : ComplexFloat() {
    mpc_set(value_, other.value_, MPC_RNDNN);
  }
  ComplexFloat& operator=(const ComplexFloat& other) {
    mpc_set(value_, other.value_, MPC_RNDNN);
    return *this;
  }
  ~ComplexFloat() { mpc_clear(value_); }

  [[nodiscard]] mpc_ptr get() { return value_; }
  [[nodiscard]] mpc_srcptr get() const { return value_; }

 private:
  mpc_t value_;
};

/// Every operation throws MathRefusal on division by zero, where there is no value, and when a
/// result leaves kMaxBits: of a rational above plus below, of a float its exponent.
class MathNumber {
 public:
  static constexpr std::size_t kMaxBits = 100'000;

  MathNumber() = default;
  MathNumber(mpq_class value);  // NOLINT(google-explicit-constructor): numbers convert
  MathNumber(long value) : MathNumber(mpq_class(value)) {}  // NOLINT(google-explicit-constructor)
  MathNumber(int value) : MathNumber(mpq_class(value)) {}   // NOLINT(google-explicit-constructor)

  [[nodiscard]] static MathNumber pi();
  [[nodiscard]] static MathNumber imaginary_unit();

  /// The rational number; null when it is a float.
  [[nodiscard]] const mpq_class* exact() const { return std::get_if<mpq_class>(&value_); }
  [[nodiscard]] bool is_zero() const;
  /// -1, 0 or 1 of a real number; 2 of one that is not real.
  [[nodiscard]] int sign() const;
  /// Cost of an operation on it, in steps of MathAlgebra.
  [[nodiscard]] std::int64_t cost() const;
  /// Equal numbers have equal texts, but for the last of 40 digits of floats.
  [[nodiscard]] std::string text() const;

  friend MathNumber operator+(const MathNumber& a, const MathNumber& b);
  friend MathNumber operator-(const MathNumber& a, const MathNumber& b);
  friend MathNumber operator*(const MathNumber& a, const MathNumber& b);
  friend MathNumber operator/(const MathNumber& a, const MathNumber& b);
  /// Exact, or nearer than 2^-150 times the larger one.
  friend bool nearly_equal(const MathNumber& a, const MathNumber& b);
  /// Real odd roots of negative numbers, else the principal value: √-1 is i.
  friend MathNumber power(const MathNumber& base, const MathNumber& exponent);
  friend MathNumber absolute(const MathNumber& a);

  /// Principal value. MathRefusal for zero.
  friend MathNumber logarithm(const MathNumber& a);

  using Function = int (*)(mpc_ptr, mpc_srcptr, mpc_rnd_t);
  /// mpc_sin and the like of the number.
  [[nodiscard]] MathNumber apply(Function function) const;

 private:
  explicit MathNumber(ComplexFloat value);
  [[nodiscard]] ComplexFloat to_float() const;

  std::variant<mpq_class, ComplexFloat> value_;
};

[[nodiscard]] bool nearly_equal(const MathNumber& a, const MathNumber& b);
[[nodiscard]] MathNumber power(const MathNumber& base, const MathNumber& exponent);
[[nodiscard]] MathNumber absolute(const MathNumber& a);
[[nodiscard]] MathNumber logarithm(const MathNumber& a);

}  // namespace jforge
