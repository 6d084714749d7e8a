#pragma once

/// Reads a Parquet file's rows as JSON lines through Python's pyarrow.

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
  ~ParquetRows();
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;

  /// Returns the number of bytes read, 0 at the end. Requires: `out` is not empty. Throws DataError
  /// if the file is damaged, EnvironmentError if pyarrow is missing or the process was killed.
  [[nodiscard]] std::size_t read(std::span<char> out);

 private:
  int wait();
  [[nodiscard]] std::string last_message() const;

  std::string path_;
  int rows_ = -1;      ///< Its standard output.
  int messages_ = -1;  ///< Its standard error, in memory.
  pid_t process_ = -1;
};

[[nodiscard]] const char* parquet_rows_source();

}  // namespace jforge
