#pragma once

/// Which build this is, for reports of a problem.

#include <string>

namespace jforge {

/// What `jforge --version` prints: version and commit, then compiler, MPI library, HDF5 and CUDA,
/// one line each.
[[nodiscard]] std::string version_text();

}  // namespace jforge
