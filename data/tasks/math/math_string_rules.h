#pragma once

/// Two published string comparisons of answers, reproduced exactly so that scores compare. Both
/// misjudge some answers (results/reference/math_rules.md).

#include <string_view>

namespace jforge {

/// Applies rule "string", is_equiv of Hendrycks et al. ("Measuring mathematical problem solving
/// with the MATH dataset", 2021) as in lm-evaluation-harness and evalchemy. Drops line breaks,
/// "\!", \left, \right, degrees, "\$", "\%", everything from "\text{ " on, blanks, and up to two
/// characters before a single "="; unifies \dfrac, \tfrac, \frac12, \sqrt3, a/b, ".5" and "0.5". If
/// the original fails on a side (two "\text{ ", "x/2", a final \sqrt), compares the given texts.
/// Keeps known errors: "11 2/3" equals "112/3".
[[nodiscard]] bool string_equal(std::string_view gold, std::string_view answer);

/// Applies rule "minerva", equal normal forms of Lewkowycz et al. ("Solving quantitative reasoning
/// problems with language models", 2022, appendix D): the text after the last "=", without
/// articles, blanks, units, \text{…} and the commas of "12,345". Omits lm-evaluation-harness'
/// symbolic comparison.
[[nodiscard]] bool minerva_equal(std::string_view gold, std::string_view answer);

}  // namespace jforge
