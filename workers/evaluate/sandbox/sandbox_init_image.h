#pragma once

#include <string_view>

namespace jforge {

/// The executable built from sandbox_init.c.
[[nodiscard]] std::string_view sandbox_init_image();

}  // namespace jforge
