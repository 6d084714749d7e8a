#pragma once

/// Splits a file into JSON records without parsing them: JSON lines, elements of a top-level JSON
/// array or Parquet rows, distinguished by content, or CSV rows with a header if the name ends in
/// ".csv" (before ".gz", ".bz2" or ".zst"). All but Parquet may be packed (UnpackedFile). Memory:
/// one record and one buffer.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace jforge {

struct RawRecord {
  std::string text;        ///< JSON text without surrounding white space.
  std::int64_t line = 0;   ///< First line, from 1; the row in Parquet.
  std::string unreadable;  ///< If not empty: why `text` is not the record.
};

/// Longer records are not held in memory.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{64} << 20;

/// Reads records in order; skips a byte order mark, CRs before newlines and blank lines. A CSV row
/// becomes an object of texts, quoted as in Python's csv module. Not thread-safe.
class RecordStream {
 public:
  /// Throws DataError if the file cannot be opened.
  explicit RecordStream(const std::filesystem::path& path);
  ~RecordStream();
  RecordStream(RecordStream&&) noexcept;
  RecordStream& operator=(RecordStream&&) noexcept;
  RecordStream(const RecordStream&) = delete;
  RecordStream& operator=(const RecordStream&) = delete;

  /// Reads the next record and notes progress; returns false at the end. Throws DataError naming
  /// file and line for damaged data, indistinguishable array elements or an unterminated quoted
  /// field, EnvironmentError if a Parquet file is read without pyarrow.
  bool next(RawRecord& record);

  /// Uncompressed bytes read so far.
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
  /// Appends the first `most` fields of the next CSV row to `fields`; returns the row's number of
  /// fields, 0 at the end.
  std::size_t take_row(std::vector<std::string>& fields, std::size_t most, RawRecord& record);
  /// Reads a field, truncated when `room` is used up.
  std::string take_field(std::size_t& room);
  template <class Take>
  void take_quoted(const Take& take_into_field);
  /// Skips white space and returns the next byte without taking it, or −1 at the end.
  int skip_space();

  std::unique_ptr<Source> source_;
  bool is_csv_;
  Form form_ = Form::unknown;
  bool first_element_ = true;
  std::vector<std::string> columns_;  ///< CSV column names as JSON strings.
};

}  // namespace jforge
