#include "data/tasks/math/math_algebra.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/random.h"

namespace jforge {
namespace {

constexpr std::size_t kNegative = 2;  ///< The point at which variables are negative.
/// Names hold what they stand for; they must not grow from level to level.
constexpr std::size_t kLongestAtom = 500;

/// Number of a variable at a point: between 1/3 and 10/3, with 20 bits behind the point.
MathNumber value_of(const std::string& name, std::size_t point) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  // Nothing may relate the points of one variable to those of another.
  const auto drawn =
      philox4x32_10({static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32U),
                     static_cast<std::uint32_t>(point), 0},
                    {0, 0})[0];
  constexpr std::uint64_t kUnit = 1U << 20U;
  const mpq_class value(static_cast<unsigned long>(kUnit / 3 + drawn % (3 * kUnit)), kUnit);
  return {point == kNegative ? mpq_class(-value) : value};
}

MathNumber reciprocal(const MathNumber& value) { return MathNumber(1) / value; }

using Evaluation = MathNumber (*)(const MathNumber&);

template <MathNumber::Function kFunction>
MathNumber apply(const MathNumber& value) {
  return value.apply(kFunction);
}

template <MathNumber::Function kFunction>
MathNumber apply_below_one(const MathNumber& value) {
  return reciprocal(value.apply(kFunction));
}

Evaluation evaluation(std::string_view name) {
  static const std::map<std::string_view, Evaluation> functions{
      {"sin", apply<mpc_sin>},           {"cos", apply<mpc_cos>},
      {"tan", apply<mpc_tan>},           {"csc", apply_below_one<mpc_sin>},
      {"sec", apply_below_one<mpc_cos>}, {"cot", apply_below_one<mpc_tan>},
      {"asin", apply<mpc_asin>},         {"acos", apply<mpc_acos>},
      {"atan", apply<mpc_atan>},         {"arcsin", apply<mpc_asin>},
      {"arccos", apply<mpc_acos>},       {"arctan", apply<mpc_atan>},
      {"sinh", apply<mpc_sinh>},         {"cosh", apply<mpc_cosh>},
      {"tanh", apply<mpc_tanh>},         {"exp", apply<mpc_exp>},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace

void MathAlgebra::spend(std::int64_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSteps) {
    throw MathRefusal("too much work");
  }
}

template <typename Operation>
Expression MathAlgebra::combine(const Expression& a, const Expression& b,
                                const Operation& operation) {
  if (a.infinity != 0 || b.infinity != 0) {
    throw MathRefusal("arithmetic with infinity");
  }
  Expression result;
  result.constant = a.constant && b.constant;
  result.percent = a.percent || b.percent;
  result.degrees = a.degrees || b.degrees;
  result.positive_only = a.positive_only || b.positive_only;
  for (std::size_t i = 0; i < result.at.size(); ++i) {
    spend(a.at[i].cost() + b.at[i].cost());
    result.at[i] = result.constant && i > 0 ? result.at[0] : operation(a.at[i], b.at[i]);
  }
  return result;
}

template <typename Operation>
Expression MathAlgebra::change(const Expression& a, const Operation& operation) {
  return combine(a, Expression(),
                 [&](const MathNumber& x, const MathNumber&) { return operation(x); });
}

Expression MathAlgebra::number(const MathNumber& value) {
  spend(1);
  Expression result;
  result.at.fill(value);
  return result;
}

Expression MathAlgebra::atom(const std::string& name) {
  if (name.size() > kLongestAtom) {
    throw MathRefusal("too long");
  }
  Expression result;
  if (name == "\\pi") {
    result = number(MathNumber::pi());
  } else if (name == "e") {
    result = number(MathNumber(1).apply(mpc_exp));
  } else if (name == "i") {
    result = number(MathNumber::imaginary_unit());
  } else {
    spend(1);
    result.constant = false;
    for (std::size_t i = 0; i < result.at.size(); ++i) {
      result.at[i] = value_of(name, i);
    }
  }
  result.name = name;
  return result;
}

Expression MathAlgebra::infinity() {
  Expression result;
  result.infinity = 1;
  return result;
}

Expression MathAlgebra::add(const Expression& a, const Expression& b) {
  return combine(a, b, [](const MathNumber& x, const MathNumber& y) { return x + y; });
}

Expression MathAlgebra::subtract(const Expression& a, const Expression& b) {
  return combine(a, b, [](const MathNumber& x, const MathNumber& y) { return x - y; });
}

Expression MathAlgebra::multiply(const Expression& a, const Expression& b) {
  for (const auto& [infinite, factor] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const mpq_class* sign = as_number(*factor);
    if (infinite->infinity != 0 && sign != nullptr && abs(*sign) == 1) {
      Expression result = *infinite;
      result.infinity *= sgn(*sign);
      return result;
    }
  }
  return combine(a, b, [](const MathNumber& x, const MathNumber& y) { return x * y; });
}

Expression MathAlgebra::divide(const Expression& a, const Expression& b) {
  return combine(a, b, [](const MathNumber& x, const MathNumber& y) { return x / y; });
}

Expression MathAlgebra::power(const Expression& base, const Expression& exponent) {
  Expression result = combine(base, exponent, [this](const MathNumber& x, const MathNumber& y) {
    spend(y.exact() != nullptr && y.exact()->get_den() == 1 ? x.cost() : 16);
    return jforge::power(x, y);
  });
  const mpq_class* rational = exponent.at[kNegative].exact();
  result.positive_only =
      result.positive_only || (!result.constant && base.at[kNegative].sign() != 1 &&
                               (rational == nullptr || mpz_even_p(rational->get_den_mpz_t()) != 0));
  return result;
}

Expression MathAlgebra::absolute(const Expression& a) {
  return change(a, [](const MathNumber& x) { return jforge::absolute(x); });
}

Expression MathAlgebra::function(const std::string& name, Expression argument) {
  if (name == "log" || name == "lg") {
    return logarithm(number(10), argument);
  }
  if (name == "ln") {
    return logarithm(atom("e"), argument);
  }
  const Evaluation evaluate = evaluation(name);
  if (evaluate == nullptr) {
    return atom(name + "(" + key(argument) + ")");
  }
  if (argument.degrees) {
    argument = divide(multiply(argument, number(MathNumber::pi())), number(180));
    argument.degrees = false;
  }
  spend(64);
  return change(argument, evaluate);
}

Expression MathAlgebra::logarithm(const Expression& base, const Expression& argument) {
  spend(64);
  Expression result = combine(base, argument, [](const MathNumber& x, const MathNumber& y) {
    return jforge::logarithm(y) / jforge::logarithm(x);
  });
  result.positive_only =
      result.positive_only || (!result.constant && argument.at[kNegative].sign() != 1);
  return result;
}

bool MathAlgebra::equal(const Expression& a, const Expression& b) {
  if (a.infinity != 0 || b.infinity != 0) {
    return a.infinity == b.infinity;
  }
  const bool all = !a.positive_only && !b.positive_only;
  return nearly_equal(a.at[0], b.at[0]) && nearly_equal(a.at[1], b.at[1]) &&
         (!all || nearly_equal(a.at[kNegative], b.at[kNegative]));
}

bool MathAlgebra::proportional(const Expression& a, const Expression& b) {
  if (a.constant || b.constant || a.infinity != 0 || b.infinity != 0 || a.at[0].is_zero() ||
      b.at[0].is_zero()) {
    return false;
  }
  const auto agrees = [&](std::size_t i) {
    return nearly_equal(a.at[i] * b.at[0], b.at[i] * a.at[0]);
  };
  return agrees(1) && (a.positive_only || b.positive_only || agrees(kNegative));
}

const mpq_class* MathAlgebra::as_number(const Expression& a) {
  return a.constant && a.infinity == 0 && !a.percent ? a.at[0].exact() : nullptr;
}

std::string MathAlgebra::key(const Expression& a) {
  if (a.infinity != 0) {
    return a.infinity > 0 ? "\\infty" : "-\\infty";
  }
  if (!a.name.empty()) {
    return a.name;
  }
  return a.constant ? a.at[0].text() : a.at[0].text() + ";" + a.at[1].text();
}

}  // namespace jforge
