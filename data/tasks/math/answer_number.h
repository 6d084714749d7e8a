#pragma once

/// Numbers in answers, compared exactly, without floating point.

#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Replaces lookalikes of ASCII: full-width forms ("５", "＋"), minus signs and dashes ("−", "–"),
/// no-break and other blanks; drops zero-width characters. The functions below do this first.
[[nodiscard]] std::string plain_characters(std::string_view text);

/// Returns the canonical form: "-12.5" for decimals of any length (no superfluous zeros, no "-0");
/// for fractions the terminating decimal, else "p/q" in lowest terms. Ignores blanks, "$", "," and
/// a final "%" or "."; "6 million" (hundred, thousand, billion, trillion) is 6000000. nullopt for
/// other text, division by zero and fractions with over 18 digits on a side.
[[nodiscard]] std::optional<std::string> canonical_number(std::string_view text);

/// Return the canonical form of the number at the start of `text` or of the last one in it:
/// optional minus and "$", digits with ",", decimals or an integer fraction "3/4", optional
/// "million" etc. A "-" right after a digit or letter is not a minus.
[[nodiscard]] std::optional<std::string> leading_number(std::string_view text);
[[nodiscard]] std::optional<std::string> last_number(std::string_view text);

/// Returns the canonical number of a box: its whole content ("2\frac{1}{2}" is 2.5), else the last
/// number in it. Blanks (also "~") before exactly three digits group thousands; squares and cubes
/// of units ("m^2", "\text{ ft}^{2}") are not numbers. Only the text after the last "=" or
/// "\approx" counts. nullopt if is_unevaluated().
[[nodiscard]] std::optional<std::string> boxed_number(std::string_view box);

/// Returns true if an expression follows the last "=" ("5 - 3", "2\sqrt{3}", "3 \times 4"), so that
/// no number is the answer.
[[nodiscard]] bool is_unevaluated(std::string_view box);

/// Returns the content of the last "\boxed{…}" or "\fbox{…}" with balanced unescaped braces, or
/// after "\boxed 5" the line up to "$". Linear time.
[[nodiscard]] std::optional<std::string_view> last_boxed(std::string_view text);

/// Converts "\frac{a}{b}" (also \dfrac, \tfrac) of plain integers to "a/b", "\$" to "$", "\%" to
/// "%", "{,}" to ","; drops spacing commands. Linear time.
[[nodiscard]] std::string plain_latex(std::string_view text);

}  // namespace jforge
