#pragma once

/// Finds numbers in answers and compares them exactly, without floating point.

#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Replaces lookalikes of ASCII: full-width forms ("５", "＋"), minus signs and dashes ("−", "–"),
/// no-break and other blanks; drops zero-width characters. All functions below that read numbers do
/// this first.
[[nodiscard]] std::string plain_characters(std::string_view text);

/// Returns a number's canonical form: "-12.5" for decimals of any length (no superfluous zeros, no
/// "-0"); fractions as terminating decimal, else "p/q" in lowest terms. Ignores blanks, "$", ","
/// and a final "%" or "."; "6 million" (hundred, thousand, billion, trillion) is 6000000. Returns
/// nullopt for other text, division by zero and fractions with more than 18 digits on a side.
[[nodiscard]] std::optional<std::string> canonical_number(std::string_view text);

/// Return the canonical form of the number at the start of `text`, or the last one in it: optional
/// minus and "$", digits with ",", decimals or an integer fraction "3/4", optionally "million" etc.
/// A "-" right after a digit or letter is not a minus.
[[nodiscard]] std::optional<std::string> leading_number(std::string_view text);
[[nodiscard]] std::optional<std::string> last_number(std::string_view text);

/// Returns the canonical number of a box's content: the whole content if it is one number
/// ("2\frac{1}{2}" is 2.5), else its last number. Blanks (also "~") before exactly three digits
/// group thousands; squares and cubes of units ("m^2", "\text{ ft}^{2}") are not numbers. Only the
/// text after the last "=" or "\approx" counts. Returns nullopt if is_unevaluated().
[[nodiscard]] std::optional<std::string> boxed_number(std::string_view box);

/// Returns true if the content after the last "=" is an unevaluated expression ("5 - 3",
/// "2\sqrt{3}", "3 \times 4"), whose last number would not be the answer.
[[nodiscard]] bool is_unevaluated(std::string_view box);

/// Returns the content of the last "\boxed{…}" or "\fbox{…}" with balanced braces (escaped ones do
/// not count), or after "\boxed 5" the rest of the line up to "$". Linear time.
[[nodiscard]] std::optional<std::string_view> last_boxed(std::string_view text);

/// Replaces every `from` (not empty) in one pass.
[[nodiscard]] std::string replaced(std::string_view text, std::string_view from,
                                   std::string_view to);

/// Converts "\frac{a}{b}" (also \dfrac, \tfrac) of plain integers to "a/b", "\$" to "$", "\%" to
/// "%", "{,}" to ","; drops spacing commands. Linear time.
[[nodiscard]] std::string plain_latex(std::string_view text);

}  // namespace jforge
