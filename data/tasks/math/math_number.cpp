#include "data/tasks/math/math_number.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace jforge {
namespace {

/// Sums that cancel to less than this part of their terms are zero.
constexpr mpfr_exp_t kLostBits = 220;
/// Bits in which equal floats agree.
constexpr mpfr_exp_t kEqualBits = 150;
constexpr unsigned long kLargestRoot = 60;

std::size_t bits_of(const mpq_class& value) {
  return mpz_sizeinbase(value.get_num_mpz_t(), 2) + mpz_sizeinbase(value.get_den_mpz_t(), 2);
}

/// Exponent of the larger part; the smallest number for zero.
mpfr_exp_t magnitude(const ComplexFloat& value) {
  mpfr_exp_t largest = mpfr_get_emin();
  for (const mpfr_srcptr part : {mpc_realref(value.get()), mpc_imagref(value.get())}) {
    if (mpfr_regular_p(part) != 0) {
      largest = std::max(largest, mpfr_get_exp(part));
    }
  }
  return largest;
}

bool is_zero_float(const ComplexFloat& value) {
  return mpfr_zero_p(mpc_realref(value.get())) != 0 && mpfr_zero_p(mpc_imagref(value.get())) != 0;
}

/// a^n, or nothing when it would be too large.
mpq_class exact_power(const mpq_class& base, unsigned long exponent) {
  mpq_class result;
  mpz_pow_ui(result.get_num_mpz_t(), base.get_num_mpz_t(), exponent);
  mpz_pow_ui(result.get_den_mpz_t(), base.get_den_mpz_t(), exponent);
  return result;
}

/// Replaces `value`, not negative, by its root of `degree` where that is rational.
bool take_root(mpq_class& value, unsigned long degree) {
  mpq_class root;
  if (mpz_root(root.get_num_mpz_t(), value.get_num_mpz_t(), degree) == 0 ||
      mpz_root(root.get_den_mpz_t(), value.get_den_mpz_t(), degree) == 0) {
    return false;
  }
  value = std::move(root);
  return true;
}

}  // namespace

MathNumber::MathNumber(mpq_class value) {
  value.canonicalize();
  if (bits_of(value) > kMaxBits) {
    throw MathRefusal("numbers too large");
  }
  value_ = std::move(value);
}

MathNumber::MathNumber(ComplexFloat value) {
  for (const mpfr_ptr part : {mpc_realref(value.get()), mpc_imagref(value.get())}) {
    if (mpfr_number_p(part) == 0) {
      throw MathRefusal("no value");
    }
    if (mpfr_zero_p(part) == 0 &&
        std::abs(mpfr_get_exp(part)) > static_cast<mpfr_exp_t>(kMaxBits)) {
      throw MathRefusal("numbers too large");
    }
  }
  // Rounding leaves a trace of an imaginary part behind, or of a real one; and a zero has no sign.
  const mpfr_exp_t largest = magnitude(value);
  for (const mpfr_ptr part : {mpc_realref(value.get()), mpc_imagref(value.get())}) {
    if (mpfr_zero_p(part) != 0 || mpfr_get_exp(part) < largest - kLostBits) {
      mpfr_set_zero(part, 1);
    }
  }
  value_ = std::move(value);
}

MathNumber MathNumber::pi() {
  ComplexFloat value;
  mpc_set_ui(value.get(), 0, MPC_RNDNN);
  mpfr_const_pi(mpc_realref(value.get()), MPFR_RNDN);
  return MathNumber(value);
}

MathNumber MathNumber::imaginary_unit() {
  ComplexFloat value;
  mpc_set_ui_ui(value.get(), 0, 1, MPC_RNDNN);
  return MathNumber(value);
}

ComplexFloat MathNumber::to_float() const {
  if (const auto* value = std::get_if<ComplexFloat>(&value_)) {
    return *value;
  }
  ComplexFloat value;
  mpc_set_q(value.get(), exact()->get_mpq_t(), MPC_RNDNN);
  return value;
}

bool MathNumber::is_zero() const {
  return exact() != nullptr ? *exact() == 0 : is_zero_float(std::get<ComplexFloat>(value_));
}

int MathNumber::sign() const {
  if (exact() != nullptr) {
    return sgn(*exact());
  }
  const auto& value = std::get<ComplexFloat>(value_);
  return mpfr_zero_p(mpc_imagref(value.get())) == 0 ? 2 : mpfr_sgn(mpc_realref(value.get()));
}

std::int64_t MathNumber::cost() const {
  return exact() != nullptr ? 1 + static_cast<std::int64_t>(bits_of(*exact()) / 512) : 2;
}

std::string MathNumber::text() const {
  if (exact() != nullptr) {
    return exact()->get_str();
  }
  constexpr std::size_t kDigits = 40;
  char* text = mpc_get_str(10, kDigits, std::get<ComplexFloat>(value_).get(), MPC_RNDNN);
  std::string result(text);
  mpc_free_str(text);
  return result;
}

MathNumber operator+(const MathNumber& a, const MathNumber& b) {
  if (a.exact() != nullptr && b.exact() != nullptr) {
    return {mpq_class(*a.exact() + *b.exact())};
  }
  const ComplexFloat x = a.to_float();
  const ComplexFloat y = b.to_float();
  ComplexFloat sum;
  mpc_add(sum.get(), x.get(), y.get(), MPC_RNDNN);
  return magnitude(sum) < std::max(magnitude(x), magnitude(y)) - kLostBits ? MathNumber()
                                                                           : MathNumber(sum);
}

MathNumber operator-(const MathNumber& a, const MathNumber& b) { return a + MathNumber(-1) * b; }

MathNumber operator*(const MathNumber& a, const MathNumber& b) {
  if (a.exact() != nullptr && b.exact() != nullptr) {
    if (bits_of(*a.exact()) + bits_of(*b.exact()) > 2 * MathNumber::kMaxBits) {
      throw MathRefusal("numbers too large");
    }
    return {mpq_class(*a.exact() * *b.exact())};
  }
  if (a.is_zero() || b.is_zero()) {
    return {};
  }
  ComplexFloat product;
  mpc_mul(product.get(), a.to_float().get(), b.to_float().get(), MPC_RNDNN);
  return MathNumber(product);
}

MathNumber operator/(const MathNumber& a, const MathNumber& b) {
  if (b.is_zero()) {
    throw MathRefusal("division by zero");
  }
  if (a.exact() != nullptr && b.exact() != nullptr) {
    return {mpq_class(*a.exact() / *b.exact())};
  }
  ComplexFloat quotient;
  mpc_div(quotient.get(), a.to_float().get(), b.to_float().get(), MPC_RNDNN);
  return MathNumber(quotient);
}

bool nearly_equal(const MathNumber& a, const MathNumber& b) {
  if (a.exact() != nullptr && b.exact() != nullptr) {
    return *a.exact() == *b.exact();
  }
  const ComplexFloat x = a.to_float();
  const ComplexFloat y = b.to_float();
  ComplexFloat difference;
  mpc_sub(difference.get(), x.get(), y.get(), MPC_RNDNN);
  return is_zero_float(difference) ||
         magnitude(difference) < std::max(magnitude(x), magnitude(y)) - kEqualBits;
}

MathNumber absolute(const MathNumber& a) {
  if (a.exact() != nullptr) {
    return {mpq_class(abs(*a.exact()))};
  }
  ComplexFloat value;
  mpc_set_ui(value.get(), 0, MPC_RNDNN);
  mpc_abs(mpc_realref(value.get()), a.to_float().get(), MPFR_RNDN);
  return MathNumber(value);
}

MathNumber logarithm(const MathNumber& a) {
  if (a.is_zero()) {
    throw MathRefusal("no value");
  }
  ComplexFloat value;
  mpc_log(value.get(), a.to_float().get(), MPC_RNDNN);
  return MathNumber(value);
}

MathNumber MathNumber::apply(Function function) const {
  const ComplexFloat argument = to_float();
  // Functions of huge arguments would need their bits.
  if (magnitude(argument) > ComplexFloat::kBits / 4) {
    throw MathRefusal("numbers too large");
  }
  ComplexFloat value;
  function(value.get(), argument.get(), MPC_RNDNN);
  return MathNumber(value);
}

MathNumber power(const MathNumber& base, const MathNumber& exponent) {
  if (base.is_zero()) {
    if (exponent.sign() != 1) {
      throw MathRefusal("power of zero");
    }
    return {};
  }
  const mpq_class* rational = exponent.exact();
  if (rational != nullptr && *rational == 0) {
    return {1};
  }
  if (rational != nullptr && base.sign() == -1 && mpz_odd_p(rational->get_den_mpz_t()) != 0) {
    const MathNumber value = power(absolute(base), exponent);
    return mpz_odd_p(rational->get_num_mpz_t()) != 0 ? MathNumber(-1) * value : value;
  }
  if (rational != nullptr && base.exact() != nullptr && base.sign() == 1 &&
      rational->get_den() <= kLargestRoot) {
    mpq_class root = *base.exact();
    const mpz_class times = abs(rational->get_num());
    if (take_root(root, rational->get_den().get_ui())) {
      if (times * bits_of(root) > MathNumber::kMaxBits + 2) {
        throw MathRefusal("numbers too large");
      }
      const mpq_class whole = exact_power(root, times.get_ui());
      return {sgn(*rational) < 0 ? mpq_class(1 / whole) : whole};
    }
  }
  return (exponent * logarithm(base)).apply(mpc_exp);
}

}  // namespace jforge
