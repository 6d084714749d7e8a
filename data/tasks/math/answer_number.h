#pragma once

/// Numbers in answers: found in text, brought to one exact form, compared without floating point.

#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// `text` with characters that only look unlike ASCII replaced: full-width forms ("５", "＋"),
/// minus signs and dashes ("−", "–"), no-break and other blanks; those without width go away. Bytes
/// that are no such character stay. Every function here that takes text for a number does this
/// first.
[[nodiscard]] std::string plain_characters(std::string_view text);

/// Canonical form of a number: "-12.5" for decimals of any length (no leading or trailing zeros, no
/// "-0"), and for a fraction its decimal when that ends, else "p/q" in lowest terms. Blanks, "$",
/// "," and a final "%" or "." are ignored; "6 million" (hundred, thousand, billion, trillion) is
/// 6000000. Nothing when the text is no number, divides by zero, or is a fraction with more than 18
/// digits on a side.
[[nodiscard]] std::optional<std::string> canonical_number(std::string_view text);

/// The number with which `text` begins, or the last one in it: optional minus, optional "$", digits
/// with "," between them, decimals, or an integer fraction "3/4", then perhaps "million" and the
/// like; a "-" right behind a digit or letter is no minus. Canonical form.
[[nodiscard]] std::optional<std::string> leading_number(std::string_view text);
[[nodiscard]] std::optional<std::string> last_number(std::string_view text);

/// The number for which the content of a box stands: the whole content where that is one number
/// ("2\frac{1}{2}" is 2.5), else the last number in it. Blanks (also "~") before exactly three
/// digits group thousands; squares and cubes of units ("m^2", "\text{ ft}^{2}") are no numbers. Of
/// "2 + 3 = 5" only what follows the last "=" or "\approx" counts. Nothing when that
/// is_unevaluated(). Canonical form.
[[nodiscard]] std::optional<std::string> boxed_number(std::string_view box);

/// Whether what the box holds, behind its last "=", is an expression that somebody would have to
/// work out ("5 - 3", "2\sqrt{3}", "3 \times 4"): no number stands there, the last one least of
/// all.
[[nodiscard]] bool is_unevaluated(std::string_view box);

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
