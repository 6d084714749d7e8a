#pragma once

/// Reads a Parquet file's rows as JSON lines from a Python process that uses pyarrow.

#include <sys/types.h>

#include <filesystem>
#include <span>
#include <string>

namespace jforge {

/// Runs the first `python3` on PATH. Not thread-safe.
class ParquetRows {
 public:
  /// Throws EnvironmentError if the process cannot be started.
  explicit ParquetRows(const std::filesystem::path& path);
  /// Kills the process.
  ~ParquetRows();
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;

  /// Reads up to out.size() ≥ 1 bytes and returns their count, 0 at the end. Throws DataError if
  /// the file is damaged, EnvironmentError if pyarrow is missing or the process was killed.
  [[nodiscard]] std::size_t read(std::span<char> out);

 private:
  /// Returns the process's wait status.
  int wait();
  [[nodiscard]] std::string last_message() const;

  std::string path_;
  int rows_ = -1;      ///< Read end of its standard output.
  int messages_ = -1;  ///< In-memory file of its standard error.
  pid_t process_ = -1;
};

[[nodiscard]] const char* parquet_rows_source();

}  // namespace jforge
