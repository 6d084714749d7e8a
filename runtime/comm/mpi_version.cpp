#include "runtime/comm/mpi_version.h"

#include <mpi.h>

#include <algorithm>
#include <array>

#include "runtime/comm/mpi_check.h"

namespace jforge {

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  detail::check(MPI_Get_library_version(text.data(), &length));
  std::string version(text.data(), static_cast<std::size_t>(length));
  version.resize(std::min(version.size(), version.find_first_of(",\n")));
  std::ranges::replace(version, '\t', ' ');
  return version;
}

}  // namespace jforge
