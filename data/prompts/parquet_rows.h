#pragma once

/// The rows of a Parquet file as JSON lines, written by a Python process with pyarrow.

#include <sys/types.h>

#include <filesystem>
#include <span>
#include <string>

namespace jforge {

/// Starts `python3`, the first one on PATH, and reads what it writes. Not thread-safe.
class ParquetRows {
 public:
  /// EnvironmentError when the process cannot be started.
  explicit ParquetRows(const std::filesystem::path& path);
  /// Ends the process.
  ~ParquetRows();
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;

  /// Fills `out` (not empty) from its beginning; returns how many bytes, 0 behind the last row.
  /// Throws, naming the file, DataError if it is damaged, and EnvironmentError if pyarrow is
  /// missing or the process was killed.
  [[nodiscard]] std::size_t read(std::span<char> out);

 private:
  /// The status that the process ends with.
  int wait();
  [[nodiscard]] std::string last_message() const;

  std::string path_;
  int rows_ = -1;      ///< The pipe's end.
  int messages_ = -1;  ///< A file in memory: standard error.
  pid_t process_ = -1;
};

/// The Python program.
[[nodiscard]] const char* parquet_rows_source();

}  // namespace jforge
