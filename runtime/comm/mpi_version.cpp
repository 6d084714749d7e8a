#include "runtime/comm/mpi_version.h"

#include <mpi.h>

#include <array>

#include "runtime/comm/mpi_check.h"

namespace jforge {

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  detail::check(MPI_Get_library_version(text.data(), &length));
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace jforge
