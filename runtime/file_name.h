#pragma once

/// Names of things as parts of names of files.

#include <string>
#include <string_view>

namespace jforge {

/// `name` as a part of a file's name, the same on every system: anything but letters, digits, ".",
/// "_", "=", "+" and "-" becomes "-".
[[nodiscard]] inline std::string file_name_part(std::string_view name) {
  std::string part(name);
  for (char& letter : part) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9') ||
                       std::string_view("._=+-").find(letter) != std::string_view::npos;
    letter = plain ? letter : '-';
  }
  return part;
}

}  // namespace jforge
