#pragma once

/// An answer read as a mathematical object: number, point, interval, set, list, matrix, equation,
/// text.

#include <cstdint>
#include <string>
#include <vector>

#include "data/tasks/math/math_algebra.h"
#include "data/tasks/math/math_tokens.h"

namespace jforge {

struct MathValue {
  enum class Kind : std::uint8_t {
    scalar,    ///< `scalar`, with `unit`.
    text,      ///< Words alone: `text`.
    numeral,   ///< "204_5": digits and base in `label`. Not the number: its base is the answer.
    tuple,     ///< Points, vectors, intervals: `parts`, brackets in `label` ("(]").
    set,       ///< "\{1, 2\}": `parts`.
    list,      ///< "1, 2" or "1 and 2" or the two values of "±": `parts`.
    sum_set,   ///< Union: `parts`.
    matrix,    ///< Rows one after another in `parts`; kind and columns in `label`.
    relation,  ///< Sides in `parts`, "=", "<", "<=" or "!=" between them in `label`,
               ///< blank-separated.
    ratio,     ///< "1:2": `parts`.
  };
  Kind kind = Kind::scalar;
  Expression scalar;
  std::vector<MathValue> parts;
  std::string label;
  /// The answer without markup, blanks, brackets, quotes and case: for comparison as text.
  std::string text;
  bool has_words = false;  ///< It holds \text{…} or a word: `text` may decide.
  /// Canonical: "cm^2"; empty: none, or one that only counts ("ways"). Of an interval that was
  /// written as an inequality, the variable.
  std::string unit;

  /// "x = …" with nothing but a name on the left.
  [[nodiscard]] bool is_definition() const;
};

/// Most elements of a list, set, tuple or matrix.
inline constexpr std::size_t kMaxMathParts = 64;

/// Reads `tokens`. Single-variable inequalities become intervals; "x \in S" is S; "a \approx b" is
/// a, or b where a is a name or nothing. MathRefusal when they make no such object.
[[nodiscard]] MathValue read_math_value(MathAlgebra& algebra, MathTokens tokens);

}  // namespace jforge
