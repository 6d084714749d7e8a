#pragma once

#include <string>

namespace jforge {

/// Returns the text of `jforge --version`: version and commit, compiler, MPI library, HDF5, CUDA.
[[nodiscard]] std::string version_text();

}  // namespace jforge
