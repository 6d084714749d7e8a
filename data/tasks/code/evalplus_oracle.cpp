#include "data/tasks/code/evalplus_oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>

#include "runtime/error.h"

namespace jforge {
namespace {

using Kind = PythonValue::Kind;

constexpr double kRelativeTolerance = 1e-7;
constexpr double kFloatTolerance = 1e-6;

bool is_floats(const PythonValue& value, EvalPlusRules rules) {
  if (value.kind == Kind::real) {
    return true;
  }
  if (value.kind != Kind::list && value.kind != Kind::tuple) {
    return false;
  }
  if (value.items.empty()) {
    return rules == EvalPlusRules::v0_2_1;
  }
  return std::all_of(value.items.begin(), value.items.end(),
                     [](const PythonValue& item) { return item.kind == Kind::real; });
}

PythonValue integer(std::string decimal) {
  return {.kind = Kind::integer, .text = std::move(decimal)};
}
PythonValue boolean(bool truth) { return {.kind = Kind::boolean, .truth = truth}; }

/// The arguments of a call.
std::vector<PythonValue> arguments(std::string_view inputs) {
  const auto node = parse_json(inputs);
  expect(node.has_value(), "the inputs of a problem parsed once before");
  return python_value(*node).items;
}

/// Whether a polynomial (coefficients from the constant upward) is within `atol` of 0 at `out`.
bool is_root(const std::vector<PythonValue>& inputs, const PythonValue& out, double atol) {
  const auto x = python_real(out);
  if (!x || inputs.size() != 1) {
    return false;
  }
  double sum = 0.0;
  for (std::size_t i = 0; i < inputs[0].items.size(); ++i) {
    const auto coefficient = python_real(inputs[0].items[i]);
    const double power = std::pow(*x, static_cast<double>(i));
    // Where the power overflows Python raises an exception.
    if (!coefficient || (std::isinf(power) && std::isfinite(*x))) {
      return false;
    }
    sum += *coefficient * power;
  }
  return std::abs(sum) <= atol;
}

/// Surface of a square pyramid whose second argument is taken for its height, not its slant height,
/// rounded.
bool is_surface_area(const std::vector<PythonValue>& inputs, const PythonValue& out, double atol) {
  const auto value = python_real(out);
  if (inputs.size() != 2 || !value) {
    return false;
  }
  const auto edge = python_real(inputs[0]);
  const auto height = python_real(inputs[1]);
  if (!edge || !height) {
    return false;
  }
  const double slant = std::sqrt(*edge / 2 * (*edge / 2) + *height * *height);
  const double area = std::nearbyint(*edge * *edge + 4 * (*edge * slant) / 2);
  return std::abs(*value - area) <= atol;
}

/// Sum of the digits' differences, the shorter number filled up with zeros in front.
bool is_digit_distance(const std::vector<PythonValue>& inputs, const PythonValue& out) {
  if (inputs.size() != 2 || inputs[0].kind != Kind::integer || inputs[1].kind != Kind::integer) {
    return false;
  }
  std::string left = inputs[0].text;
  std::string right = inputs[1].text;
  if (left.front() == '-' || right.front() == '-') {
    return false;
  }
  const std::size_t length = std::max(left.size(), right.size());
  left.insert(0, length - left.size(), '0');
  right.insert(0, length - right.size(), '0');
  long distance = 0;
  for (std::size_t i = 0; i < length; ++i) {
    distance += std::abs(left[i] - right[i]);
  }
  return python_equal(out, integer(std::to_string(distance)));
}

}  // namespace

std::string_view to_string(EvalPlusRules rules) {
  return rules == EvalPlusRules::v0_2_1 ? "evalplus-0.2.1" : "evalplus-0.3.1";
}

EvalPlusOracle::Special EvalPlusOracle::special_of(EvalPlusSuite suite, EvalPlusRules rules,
                                                   std::string_view entry_point) {
  if (suite == EvalPlusSuite::humaneval) {
    return entry_point == "find_zero" ? Special::root : Special::none;
  }
  static const std::map<std::string_view, Special> of_both{
      {"are_equivalent", Special::anything}, {"sum_div", Special::zero_too},
      {"check_str", Special::found},         {"text_match_three", Special::found},
      {"text_starta_endb", Special::found},
  };
  static const std::map<std::string_view, Special> of_later{
      {"surface_Area", Special::surface_area},
      {"digit_distance_nums", Special::digit_distance},
      {"similar_elements", Special::same_set},
      {"find_char_long", Special::same_set},
      {"common_in_nested_lists", Special::same_set},
      {"extract_singly", Special::same_set},
      {"larg_nnum", Special::same_set},
      {"intersection_array", Special::same_set},
      {"find_dissimilar", Special::same_set},
      {"Diff", Special::same_set},
  };
  if (const auto found = of_both.find(entry_point); found != of_both.end()) {
    return found->second;
  }
  const auto found = of_later.find(entry_point);
  return rules == EvalPlusRules::v0_3_1 && found != of_later.end() ? found->second : Special::none;
}

EvalPlusOracle::EvalPlusOracle(EvalPlusSuite suite, EvalPlusRules rules,
                               std::string_view entry_point, double atol)
    : rules_(rules), special_(special_of(suite, rules, entry_point)), atol_(atol) {}

bool EvalPlusOracle::needs_inputs() const {
  return special_ == Special::surface_area || special_ == Special::digit_distance ||
         special_ == Special::root;
}

bool EvalPlusOracle::matches(const PythonValue& out, const PythonValue& expected,
                             std::string_view inputs) const {
  switch (special_) {
    case Special::anything:
      return true;
    case Special::zero_too:
      return python_equal(out, expected) || python_equal(out, integer("0"));
    case Special::found: {
      const PythonValue wanted = boolean(expected.kind != Kind::none);
      return python_equal(out.kind == Kind::boolean ? out : boolean(out.kind != Kind::none),
                          wanted);
    }
    case Special::same_set:
      return python_set_equal(out, expected);
    case Special::surface_area:
      return python_equal(out, expected) || is_surface_area(arguments(inputs), out, atol_);
    case Special::digit_distance:
      return python_equal(out, expected) || is_digit_distance(arguments(inputs), out);
    case Special::none:
    case Special::root:
      return python_equal(out, expected);
  }
  throw InternalError("unknown special comparison");
}

bool EvalPlusOracle::close(const PythonValue& out, const PythonValue& expected) const {
  if (rules_ == EvalPlusRules::v0_2_1) {
    return numpy_close(out, expected, kRelativeTolerance, atol_, /*nan_is_close=*/true,
                       ArrayFit::same_shape_or_scalar);
  }
  const bool sequence = expected.kind == Kind::list || expected.kind == Kind::tuple;
  return out.kind == expected.kind && (!sequence || out.items.size() == expected.items.size()) &&
         numpy_close(out, expected, kRelativeTolerance, atol_, /*nan_is_close=*/false,
                     ArrayFit::broadcast);
}

bool EvalPlusOracle::accepts(const PythonValue& out, const PythonValue& expected,
                             std::string_view inputs) {
  if (special_ == Special::root) {
    return is_root(arguments(inputs), out, atol_);
  }
  // Python refuses to take the answer of an array's == for a truth value.
  if (out.kind == Kind::array && special_ == Special::none) {
    return false;
  }
  const bool match = matches(out, expected, inputs);
  if (atol_ == 0 && special_ != Special::found && is_floats(expected, rules_)) {
    atol_ = kFloatTolerance;
  }
  return match || (atol_ != 0 && close(out, expected));
}

}  // namespace jforge
