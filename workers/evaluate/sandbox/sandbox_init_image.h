#pragma once

#include <string_view>

namespace jforge {

[[nodiscard]] std::string_view sandbox_init_image();

}  // namespace jforge
