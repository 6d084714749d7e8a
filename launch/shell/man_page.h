#pragma once

#include <string>

#include "launch/shell/command_description.h"

namespace jforge {

/// Returns the man page jforge(1) as roff for the man macros, in ASCII.
[[nodiscard]] std::string man_page(const CommandDescription& program);

}  // namespace jforge
