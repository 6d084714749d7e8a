#pragma once

/// GPT-2's spelling of bytes: printable bytes stand for themselves, the other 68 map to U+0100,
/// U+0101, … in order.

#include <optional>
#include <string>
#include <string_view>

namespace jforge {

/// Spells " a" as "Ġa".
std::string spell_bytes(std::string_view bytes);

/// Returns nullopt if a character spells no byte. Requires: `token` is well-formed UTF-8.
std::optional<std::string> bytes_of_spelling(std::string_view token);

}  // namespace jforge
