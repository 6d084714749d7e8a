#pragma once

namespace jforge {

[[nodiscard]] const char* harness_source();

}  // namespace jforge
