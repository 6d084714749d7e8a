#pragma once

/// Memory-mapped files: an I/O error or a shortened file raises SIGBUS.

#include <cstddef>
#include <filesystem>
#include <span>

namespace jforge {

/// A whole file, read-only. Throws as read_file(), and EnvironmentError if it cannot be mapped.
class FileMapping {
 public:
  explicit FileMapping(const std::filesystem::path& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t place_;  ///< Index into the handler's table.
};

/// Makes SIGBUS in a FileMapping end the process with exit code 4 and one line naming the file;
/// elsewhere the default applies. install_signal_handlers() calls it.
void end_where_a_mapping_is_lost();

}  // namespace jforge
