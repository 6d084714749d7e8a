#pragma once

/// The two published ways of comparing answers to mathematics problems as strings, each as its tool
/// does it, so that figures compare with published ones. Both call some wrong answers right and
/// many right ones wrong (results/reference/math_rules.md).

#include <string_view>

namespace jforge {

/// Rule "string": is_equiv of Hendrycks et al. ("Measuring mathematical problem solving with the
/// MATH dataset", 2021) as lm-evaluation-harness and, with it, evalchemy run it. Line breaks, "\!",
/// \left, \right, degrees, "\$", "\%", all from "\text{ " on, a name of at most two characters
/// before a single "=" and blanks are dropped; \dfrac, \tfrac, \frac12, \sqrt3, a/b, ".5" and "0.5"
/// get one spelling. Where that program fails on one side (two "\text{ ", "x/2", \sqrt at the end)
/// both are compared as they stand. Its known errors are kept: "11 2/3" equals "112/3".
[[nodiscard]] bool string_equal(std::string_view gold, std::string_view answer);

/// Rule "minerva": equality of the normal forms of Lewkowycz et al. ("Solving quantitative
/// reasoning problems with language models", 2022, appendix D), without the symbolic comparison
/// that lm-evaluation-harness adds to it: what follows the last "=", without articles, blanks,
/// units and \text{…}; "12,345" without its commas.
[[nodiscard]] bool minerva_equal(std::string_view gold, std::string_view answer);

}  // namespace jforge
