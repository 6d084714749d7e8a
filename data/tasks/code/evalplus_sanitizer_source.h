#pragma once

namespace jforge {

/// Text of evalplus_sanitizer.py, which the binary carries.
[[nodiscard]] const char* evalplus_sanitizer_source();

}  // namespace jforge
