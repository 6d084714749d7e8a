#include "launch/version.h"

#include <fmt/format.h>

#include "data/hdf5/hdf5_handles.h"
#include "launch/commit.h"  // written by launch/cmake/WriteCommit.cmake
#include "runtime/comm/mpi_version.h"

namespace jforge {

std::string version_text() {
  return fmt::format("jforge {} (commit {})\ncompiler: {}\nMPI: {}\nHDF5: {}\nCUDA: {}",
                     JFORGE_VERSION, JFORGE_COMMIT, JFORGE_COMPILER, mpi_library_version(),
                     hdf5_library_version(), JFORGE_CUDA_VERSION);
}

}  // namespace jforge
