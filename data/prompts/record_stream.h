#pragma once

/// Splits a file into JSON records without parsing them: JSON lines, or the elements of one
/// top-level JSON array; plain or gzip, told apart by content. Memory is one record plus one
/// buffer.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace jforge {

/// One record as it stands in its file.
struct RawRecord {
  std::string text;       ///< JSON text, without surrounding white space or line end.
  std::int64_t line = 0;  ///< Line at which it starts, from 1.
  bool too_long = false;  ///< Above kMaxRecordBytes; `text` is then cut.
};

/// Longer records are not held in memory.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{64} << 20;

/// Reads records one after another. A byte order mark, CRLF line ends and blank lines are skipped.
/// Not thread-safe.
class RecordStream {
 public:
  /// DataError naming the file when it cannot be opened.
  explicit RecordStream(const std::filesystem::path& path);
  ~RecordStream();
  RecordStream(RecordStream&&) noexcept;
  RecordStream& operator=(RecordStream&&) noexcept;
  RecordStream(const RecordStream&) = delete;
  RecordStream& operator=(const RecordStream&) = delete;

  /// Fills `record` with the next one; false at the end. Each is a sign of progress. DataError
  /// naming file and line when the file cannot be read further: damaged gzip data, or an array
  /// whose elements cannot be told apart.
  bool next(RawRecord& record);

  /// Uncompressed bytes taken from the file so far.
  [[nodiscard]] std::int64_t bytes_read() const;

 private:
  class Source;
  enum class Form : std::uint8_t { unknown, lines, array, finished };

  void detect_form();
  bool next_line(RawRecord& record);
  bool next_element(RawRecord& record);
  void scan_element(RawRecord& record);
  /// Skips white space; returns the next byte without taking it, −1 at the end.
  int skip_space();

  std::unique_ptr<Source> source_;
  Form form_ = Form::unknown;
  bool first_element_ = true;
};

}  // namespace jforge
