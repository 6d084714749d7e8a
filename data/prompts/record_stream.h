#pragma once

/// Splits a file into JSON records without parsing them: JSON lines, the elements of one top-level
/// JSON array, or the rows of a Parquet file, told apart by content; or the rows of a CSV file with
/// a header, if the name ends in ".csv" (before ".gz", ".bz2" or ".zst"). All but Parquet may be
/// packed (UnpackedFile). Memory is one record plus one buffer.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace jforge {

/// One record as it stands in its file.
struct RawRecord {
  std::string text;        ///< JSON text, without surrounding white space or line end.
  std::int64_t line = 0;   ///< Line at which it starts, from 1; in Parquet the row.
  std::string unreadable;  ///< Not empty: why `text` is not the record, as "longer than … bytes".
};

/// Longer records are not held in memory.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{64} << 20;

/// Reads records one after another. A byte order mark, CRLF line ends and blank lines are skipped.
/// A row of a CSV file becomes an object whose values are texts; fields are quoted as Python's csv
/// module reads them. Not thread-safe.
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
  /// naming file and line when the file cannot be read further: damaged data, an array whose
  /// elements cannot be told apart, or a quoted field without an end. EnvironmentError when a
  /// Parquet file is read without pyarrow.
  bool next(RawRecord& record);

  /// Uncompressed bytes taken from the file so far.
  [[nodiscard]] std::int64_t bytes_read() const;

 private:
  class Source;
  enum class Form : std::uint8_t { unknown, lines, array, csv, finished };

  void detect_form();
  bool next_line(RawRecord& record);
  bool next_element(RawRecord& record);
  void scan_element(RawRecord& record);
  void read_header();
  bool next_row(RawRecord& record);
  /// Appends the first `most` fields of the next row of a CSV file to `fields`; returns how many it
  /// has, 0 at the end.
  std::size_t take_row(std::vector<std::string>& fields, std::size_t most, RawRecord& record);
  /// A field, cut when `room` is used up.
  std::string take_field(std::size_t& room);
  template <class Take>
  void take_quoted(const Take& take_into_field);
  /// Skips white space; returns the next byte without taking it, −1 at the end.
  int skip_space();

  std::unique_ptr<Source> source_;
  bool is_csv_;
  Form form_ = Form::unknown;
  bool first_element_ = true;
  std::vector<std::string> columns_;  ///< Of a CSV file, as JSON strings.
};

}  // namespace jforge
