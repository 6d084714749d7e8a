#pragma once

/// The one way in which the program parses TOML: toml++ bounds how deep values are nested, not how
/// many parts a key has, and frees a table by recursion.

#include <toml++/toml.h>

#include <string>

namespace jforge {

/// The table that `text` is. Throws ConfigError "FILE:LINE: reason" if it is not TOML or nests
/// brackets or the parts of a key more than 64 deep. With an empty `file_name` the nodes' sources
/// have no path.
[[nodiscard]] toml::table parse_bounded_toml(const std::string& text, const std::string& file_name);

}  // namespace jforge
