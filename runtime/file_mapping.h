#pragma once

/// Files in memory. What cannot be read of one when it is looked at (an I/O error, a file that was
/// made shorter meanwhile) is a signal and no error code: SIGBUS.

#include <cstddef>
#include <filesystem>
#include <span>

namespace jforge {

/// A whole file, read-only in memory. Throws as read_file(), and EnvironmentError where there is no
/// room for it.
class FileMapping {
 public:
  explicit FileMapping(const std::filesystem::path& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t place_;  ///< Among those that the handler knows.
};

/// From now on SIGBUS in a FileMapping ends the process with one line that names the file and with
/// exit code 4, and elsewhere as before. install_signal_handlers() calls it.
void end_where_a_mapping_is_lost();

}  // namespace jforge
