#pragma once

#include <string>

namespace jforge {

/// First line of the loaded MPI library's version text. Works before MPI starts.
[[nodiscard]] std::string mpi_library_version();

}  // namespace jforge
