#pragma once

#include <string_view>

namespace jforge {

/// The bytes of the executable that sandbox_init.c makes.
[[nodiscard]] std::string_view sandbox_init_image();

}  // namespace jforge
