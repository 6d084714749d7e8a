#pragma once

#include <string>
#include <string_view>

namespace jforge {

/// Makes `name` a valid part of a file name on every system: anything but letters, digits, ".",
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
