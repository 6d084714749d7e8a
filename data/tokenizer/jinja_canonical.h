#pragma once

/// One spelling for all Jinja templates that print the same text, so that a known template is
/// recognised whatever its line breaks, quotes and blanks.

#include <string>
#include <string_view>

namespace jforge {

/// Brackets around what is not literal text in a canonical template.
inline constexpr char kTagOpen = '\x01';
inline constexpr char kTagClose = '\x02';

/// Canonical form of a Jinja template rendered as Hugging Face does (trim_blocks, lstrip_blocks):
/// literal text and printed string constants verbatim, `{% statement %}` as
/// `<open>statement<close>` and `{{ a + b }}` as one `<open>= a<close>` for each operand that is no
/// constant; inside tags strings are double-quoted, `x['name']` is `x.name` and blanks are single.
/// Comments vanish. DataError naming `origin` for a template that does not lex.
std::string canonical_jinja(std::string_view source, const std::string& origin);

}  // namespace jforge
