#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace jforge::test {

/// Returns the folder of real data: JFORGE_TEST_DATA or, without it, shared/data beside the source
/// tree.
inline std::filesystem::path test_data() {
  if (const char* given = std::getenv("JFORGE_TEST_DATA")) {
    return given;
  }
  const char* source = std::getenv("JFORGE_SOURCE_DIR");
  return std::filesystem::path(source == nullptr ? "." : source) / "../shared/data";
}

}  // namespace jforge::test

/// Skips the current test, or the fixture whose SetUp() calls it, unless test_data() holds `name`.
#define SKIP_WITHOUT_TEST_DATA(name)                                       \
  if (std::filesystem::exists(jforge::test::test_data() / (name))) {       \
  } else /* NOLINT */                                                      \
    GTEST_SKIP() << "no " << (name) << " in " << jforge::test::test_data() \
                 << ": set JFORGE_TEST_DATA"
