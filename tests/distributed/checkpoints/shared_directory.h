#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "runtime/comm/collectives.h"
#include "runtime/comm/mpi_session.h"

namespace jforge::test {

/// A directory of all ranks; rank 0 makes and removes it. Construction and destruction are
/// collective.
class SharedDirectory {
 public:
  SharedDirectory(const Communicator& comm, const std::string& name) : comm_(comm) {
    path_ = broadcast_text(
        comm,
        (std::filesystem::temp_directory_path() / (name + "-" + std::to_string(::getpid())))
            .string(),
        0);
    if (comm_.rank() == 0) {
      std::filesystem::remove_all(path_);
      std::filesystem::create_directories(path_);
    }
    comm_.barrier();
  }
  ~SharedDirectory() {
    comm_.barrier();
    if (comm_.rank() == 0) {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
  }
  SharedDirectory(const SharedDirectory&) = delete;
  SharedDirectory& operator=(const SharedDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  const Communicator& comm_;
  std::filesystem::path path_;
};

}  // namespace jforge::test
