#pragma once

/// EvalPlus' comparison of a returned value with the expected one.

#include <cstdint>
#include <string>
#include <string_view>

#include "data/tasks/code/python_value.h"

namespace jforge {

enum class EvalPlusSuite : std::uint8_t { humaneval, mbpp };
/// The release whose comparison is meant: they differ in what counts as equal.
enum class EvalPlusRules : std::uint8_t { v0_2_1, v0_3_1 };
/// "evalplus-0.2.1", "evalplus-0.3.1".
[[nodiscard]] std::string_view to_string(EvalPlusRules rules);

/// Judges the values of one run of one problem, in the order of the calls.
///
/// Both releases: Python's ==; where that fails and the tolerance atol is not 0, |out − expected| ≤
/// atol + 1e-7·|expected| elementwise. atol is the problem's; once an expected value is a float, or
/// a list or tuple of nothing but floats, an atol of 0 becomes 1e-6 for the rest of the run.
/// MBPP's are_equivalent takes every answer, sum_div also 0, and check_str, text_match_three and
/// text_starta_endb ask only whether something was found.
/// 0.2.1 compares as numpy.testing.assert_allclose (NaN equals NaN, a scalar fits every shape) and
/// takes an empty list for a list of floats.
/// 0.3.1 compares as numpy.allclose between values of one type and one length; eight MBPP problems
/// compare as sets, surface_Area and digit_distance_nums accept a second reading of the problem,
/// and HumanEval's find_zero accepts every root (as meant, and as later releases do: 0.3.1's own
/// branch forgets to note it, and so fails every program).
class EvalPlusOracle {
 public:
  EvalPlusOracle(EvalPlusSuite suite, EvalPlusRules rules, std::string_view entry_point,
                 double atol);

  /// Whether accepts() looks at the inputs.
  [[nodiscard]] bool needs_inputs() const;
  /// Whether `out` counts as right where the canonical solution gave `expected`. `inputs` is the
  /// JSON array of the call's arguments where needs_inputs().
  [[nodiscard]] bool accepts(const PythonValue& out, const PythonValue& expected,
                             std::string_view inputs);

 private:
  enum class Special : std::uint8_t {
    none,
    anything,
    zero_too,
    found,
    same_set,
    surface_area,
    digit_distance,
    root
  };
  [[nodiscard]] static Special special_of(EvalPlusSuite suite, EvalPlusRules rules,
                                          std::string_view entry_point);
  [[nodiscard]] bool matches(const PythonValue& out, const PythonValue& expected,
                             std::string_view inputs) const;
  [[nodiscard]] bool close(const PythonValue& out, const PythonValue& expected) const;

  EvalPlusRules rules_;
  Special special_;
  double atol_;
};

}  // namespace jforge
