#pragma once

#include <string>

namespace jforge {

/// First line of what the loaded MPI library calls itself. May be called before MPI starts.
[[nodiscard]] std::string mpi_library_version();

}  // namespace jforge
