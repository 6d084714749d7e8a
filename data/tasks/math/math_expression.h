#pragma once

/// Reads one scalar expression of an answer.

#include "data/tasks/math/math_algebra.h"
#include "data/tasks/math/math_tokens.h"

namespace jforge {

/// Value of `tokens`, all of them: numbers (decimals, repeating decimals, mixed numbers, 1.5E-3, "6
/// million"),
/// + - * / ^, implicit products, \frac, \sqrt[n], \binom, factorials, absolute values of numbers,
/// functions, variables with subscripts. Precedence: "1/2x" is (1/2)x; an
/// exponent without braces is a whole number ("x^10"). MathRefusal when they are no expression, or
/// nested more than 50 deep.
[[nodiscard]] Expression parse_expression(MathAlgebra& algebra, MathTokens tokens);

}  // namespace jforge
