#pragma once

/// Numbers in answers: found in text, brought to one exact form, compared without floating point.

#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Canonical form of a number: "-12.5" for decimals of any length (no leading or trailing zeros, no
/// "-0"), and for a fraction its decimal when that ends, else "p/q" in lowest terms. Blanks, "$",
/// "," and a final "%" or "." are ignored. Nothing when the text is no number, divides by zero, or
/// is a fraction with more than 18 digits on a side.
[[nodiscard]] std::optional<std::string> canonical_number(std::string_view text);

/// The number with which `text` begins, or the last one in it: optional minus, optional "$", digits
/// with "," between them, decimals, or an integer fraction "3/4"; a "-" right behind a digit or
/// letter is no minus. Canonical form.
[[nodiscard]] std::optional<std::string> leading_number(std::string_view text);
[[nodiscard]] std::optional<std::string> last_number(std::string_view text);

/// The number for which the content of a box stands: the whole content where that is one number,
/// else the last number in it. Blanks (also "~") before exactly three digits group thousands;
/// squares and cubes of units ("m^2", "\text{ ft}^{2}") are no numbers. Canonical form.
[[nodiscard]] std::optional<std::string> boxed_number(std::string_view box);

/// Content of the last "\boxed{…}" or "\fbox{…}" whose braces balance (escaped ones do not count);
/// of "\boxed 5", without braces, the rest of the line up to "$". Nothing when there is none.
/// Linear in the text's length.
[[nodiscard]] std::optional<std::string_view> last_boxed(std::string_view text);

/// `text` with every `from` (not empty) replaced, in one pass.
[[nodiscard]] std::string replaced(std::string_view text, std::string_view from,
                                   std::string_view to);

/// "\frac{a}{b}" (also \dfrac, \tfrac) of plain integers to "a/b", "\$" to "$", "\%" to "%", "{,}"
/// to ",", spacing commands away. Linear in the text's length.
[[nodiscard]] std::string plain_latex(std::string_view text);

}  // namespace jforge
