#pragma once

/// Splits files into JSON records without parsing them: JSON lines, elements of a top-level array
/// or Parquet rows, distinguished by content, or CSV rows with a header if the name ends in ".csv"
/// (before ".gz", ".bz2" or ".zst"). All but Parquet may be packed (UnpackedFile). Holds one record
/// and one buffer.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace jforge {

struct RawRecord {
  std::string text;        ///< JSON text without surrounding white space.
  std::int64_t line = 0;   ///< First line, from 1; the row in Parquet.
  std::string unreadable;  ///< If not empty: the reason.
};

inline constexpr std::size_t kMaxRecordBytes = std::size_t{64} << 20;

/// Skips a byte order mark, CRs before newlines and blank lines. CSV rows become objects of texts,
/// with the quoting of Python's csv module. Not thread-safe.
class RecordStream {
 public:
  /// Throws DataError if the file cannot be opened.
  explicit RecordStream(const std::filesystem::path& path);
  ~RecordStream();
  RecordStream(RecordStream&&) noexcept;
  RecordStream& operator=(RecordStream&&) noexcept;
  RecordStream(const RecordStream&) = delete;
  RecordStream& operator=(const RecordStream&) = delete;

  /// Returns false at the end. Notes progress. Throws DataError naming file and line if data are
  /// damaged, array elements cannot be separated or a quoted field does not end, EnvironmentError
  /// if pyarrow is missing.
  bool next(RawRecord& record);

  /// Returns the uncompressed bytes read so far.
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
  /// Appends the row's first `most` fields; returns its number of fields, 0 at the end.
  std::size_t take_row(std::vector<std::string>& fields, std::size_t most, RawRecord& record);
  /// Reads a field, truncated when `room` is used up.
  std::string take_field(std::size_t& room);
  template <class Take>
  void take_quoted(const Take& take_into_field);
  /// Returns the next byte without taking it, or −1 at the end.
  int skip_space();

  std::unique_ptr<Source> source_;
  bool is_csv_;
  Form form_ = Form::unknown;
  bool first_element_ = true;
  std::vector<std::string> columns_;  ///< As JSON strings.
};

}  // namespace jforge
