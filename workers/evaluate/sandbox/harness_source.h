#pragma once

namespace jforge {

/// Text of harness.py.
[[nodiscard]] const char* harness_source();

}  // namespace jforge
