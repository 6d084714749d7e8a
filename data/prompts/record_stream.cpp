#include "data/prompts/record_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/unpacked_file.h"
#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/python_process.h"

namespace jforge {

const char* parquet_rows_source();  // parquet_rows.py

/// Buffers a file's unpacked bytes and counts lines.
class RecordStream::Source {
 public:
  explicit Source(const std::filesystem::path& path)
      : path_(path.string()), file_(path), buffer_(std::size_t{1} << 20) {
    if (peek() == 'P' && std::string_view(buffer_.data(), end_).starts_with("PAR1")) {
      rows_ = std::make_unique<PythonProcess>(
          parquet_rows_source(), std::vector{path_},
          PythonProcess::Purpose{
              path_, "a Parquet file is read with Python's pyarrow",
              "apt-get install python3-venv && python3 -m venv ~/jforge-python && . "
              "~/jforge-python/bin/activate && pip install pyarrow"});
      at_ = end_ = 0;
      bytes_ = 0;
    }
  }

  /// Returns the next byte without taking it, or −1 at the end.
  int peek() {
    if (at_ == end_ && !refill()) {
      return -1;
    }
    return static_cast<unsigned char>(buffer_[at_]);
  }

  void take() {
    line_ += buffer_[at_] == '\n' ? 1 : 0;
    ++at_;
  }

  /// Takes the rest of the line and its newline; false at the end of the file.
  bool take_line(RawRecord& record) {
    if (peek() < 0) {
      return false;
    }
    record.line = line_;
    do {
      const char* begin = buffer_.data() + at_;
      const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', end_ - at_));
      const std::size_t count =
          newline == nullptr ? end_ - at_ : static_cast<std::size_t>(newline - begin);
      append(record, {begin, count});
      at_ += count;
      if (newline != nullptr) {
        take();
        return true;
      }
    } while (refill());
    return true;
  }

  static void append(RawRecord& record, std::string_view bytes) {
    const std::size_t room = kMaxRecordBytes - record.text.size();
    if (bytes.size() > room) {
      refuse_long(record);
    }
    record.text.append(bytes.substr(0, room));
  }

  static void refuse_long(RawRecord& record) {
    record.unreadable = fmt::format("longer than {} bytes", kMaxRecordBytes);
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError(fmt::format("{}:{}: {}", path_, line_, what));
  }

  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  bool refill() {
    at_ = 0;
    end_ = 0;
    if (rows_) {
      end_ = rows_->read(buffer_);
    } else {
      try {
        end_ = file_.read(buffer_);
      } catch (const DataError& error) {
        throw DataError(fmt::format("{} (after line {})", error.what(), line_));
      }
    }
    bytes_ += static_cast<std::int64_t>(end_);
    return end_ > 0;
  }

  std::string path_;
  UnpackedFile file_;
  std::unique_ptr<PythonProcess> rows_;  ///< Parquet only.
  std::vector<char> buffer_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  std::int64_t line_ = 1;
  std::int64_t bytes_ = 0;
};

namespace {

constexpr std::size_t kMaxColumns = std::size_t{1} << 16;

bool is_csv_name(const std::filesystem::path& path) {
  const auto ending = [](const std::filesystem::path& name) {
    std::string text = name.extension().string();
    std::ranges::transform(text, text.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return text;
  };
  const std::string last = ending(path);
  const bool packed = last == ".gz" || last == ".bz2" || last == ".zst";
  return (packed ? ending(path.stem()) : last) == ".csv";
}

/// Keeps invalid UTF-8.
std::string quoted_json(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

bool is_space(int byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

}  // namespace

RecordStream::RecordStream(const std::filesystem::path& path)
    : source_(std::make_unique<Source>(path)), is_csv_(is_csv_name(path)) {}
RecordStream::~RecordStream() = default;
RecordStream::RecordStream(RecordStream&&) noexcept = default;
RecordStream& RecordStream::operator=(RecordStream&&) noexcept = default;

std::int64_t RecordStream::bytes_read() const { return source_->bytes(); }

int RecordStream::skip_space() {
  while (is_space(source_->peek())) {
    source_->take();
  }
  return source_->peek();
}

void RecordStream::detect_form() {
  if (source_->peek() == 0xFE || source_->peek() == 0xFF) {
    source_->refuse(
        "begins as UTF-16 text does; turn it into UTF-8 first: iconv -f UTF-16 -t UTF-8");
  }
  if (source_->peek() == 0xEF) {
    for (const int byte : {0xEF, 0xBB, 0xBF}) {
      if (source_->peek() != byte) {
        source_->refuse("starts with half a byte order mark: not UTF-8 text");
      }
      source_->take();
    }
  }
  if (is_csv_) {
    form_ = Form::csv;
    return read_header();
  }
  form_ = skip_space() == '[' ? Form::array : Form::lines;
  if (form_ == Form::array) {
    source_->take();
  }
}

bool RecordStream::next(RawRecord& record) {
  if (form_ == Form::unknown) {
    detect_form();
  }
  note_progress();
  record.text.clear();
  record.unreadable.clear();
  switch (form_) {
    case Form::lines:
      return next_line(record);
    case Form::array:
      return next_element(record);
    case Form::csv:
      return next_row(record);
    default:
      return false;
  }
}

bool RecordStream::next_line(RawRecord& record) {
  while (source_->take_line(record)) {
    std::string& text = record.text;
    while (!text.empty() && is_space(static_cast<unsigned char>(text.back()))) {
      text.pop_back();
    }
    text.erase(0, std::min(text.find_first_not_of(" \t\r"), text.size()));
    if (!text.empty()) {
      return true;
    }
    record.unreadable.clear();
  }
  form_ = Form::finished;
  return false;
}

bool RecordStream::next_element(RawRecord& record) {
  int byte = skip_space();
  if (!first_element_ && byte == ',') {
    source_->take();
    byte = skip_space();
    if (byte == ']' || byte == ',') {
      source_->refuse("an element is missing between the commas of the array");
    }
  } else if (byte == ']') {
    source_->take();
    if (skip_space() >= 0) {
      source_->refuse(
          "there is text after the end of the array: give one array, or one record a line; records "
          "that are arrays need one array around them all");
    }
    form_ = Form::finished;
    return false;
  } else if (!first_element_) {
    source_->refuse(byte < 0 ? "the array does not end: the file is cut short"
                             : "a comma or ] is missing between the elements of the array");
  }
  if (byte < 0) {
    source_->refuse("the array does not end: the file is cut short");
  }
  first_element_ = false;
  record.line = source_->line();
  scan_element(record);
  return true;
}

void RecordStream::scan_element(RawRecord& record) {
  int depth = 0;
  bool in_string = false;
  while (true) {
    const int byte = source_->peek();
    if (byte < 0) {
      source_->refuse("the array does not end: the file is cut short");
    }
    const char c = static_cast<char>(byte);
    if (!in_string && depth == 0 && (c == ',' || c == ']' || is_space(byte))) {
      return;  // After a number, true, false or null.
    }
    Source::append(record, {&c, 1});
    source_->take();
    if (in_string) {
      if (c == '\\') {
        const int escaped = source_->peek();
        if (escaped >= 0) {
          const char e = static_cast<char>(escaped);
          Source::append(record, {&e, 1});
          source_->take();
        }
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    if (!in_string && depth == 0 && (c == '"' || c == '}' || c == ']')) {
      return;
    }
    if (depth < 0) {
      source_->refuse("brackets of the array do not match");
    }
  }
}

void RecordStream::read_header() {
  RawRecord header;
  const std::size_t count = take_row(columns_, kMaxColumns, header);
  if (count > kMaxColumns || !header.unreadable.empty()) {
    source_->refuse("the header is too long: is this a CSV file?");
  }
  std::set<std::string> names;
  for (std::string& name : columns_) {
    if (!names.insert(name).second) {
      source_->refuse(fmt::format("the header has two columns '{}'", name));
    }
    name = quoted_json(name);
  }
}

bool RecordStream::next_row(RawRecord& record) {
  std::vector<std::string> fields;
  const std::size_t count = take_row(fields, columns_.size(), record);
  if (count == 0) {
    form_ = Form::finished;
    return false;
  }
  if (count != columns_.size() && record.unreadable.empty()) {
    record.unreadable = fmt::format("the row has {} fields, the header {}", count, columns_.size());
  }
  for (std::size_t i = 0; i < fields.size(); ++i) {
    record.text += i == 0 ? '{' : ',';
    record.text += columns_[i] + ':' + quoted_json(fields[i]);
  }
  record.text += '}';
  return true;
}

std::size_t RecordStream::take_row(std::vector<std::string>& fields, std::size_t most,
                                   RawRecord& record) {
  while (source_->peek() == '\r' || source_->peek() == '\n') {
    source_->take();
  }
  if (source_->peek() < 0) {
    return 0;
  }
  record.line = source_->line();
  std::size_t room = kMaxRecordBytes + 1;
  std::size_t count = 0;
  do {
    if (count > 0) {
      source_->take();
    }
    std::string field = take_field(room);
    if (count++ < most) {
      fields.push_back(std::move(field));
    }
  } while (source_->peek() == ',');
  if (room == 0) {
    Source::refuse_long(record);
  }
  return count;
}

std::string RecordStream::take_field(std::size_t& room) {
  std::string field;
  const auto take_into_field = [&] {
    if (room > 0) {
      field += static_cast<char>(source_->peek());
      --room;
    }
    source_->take();
  };
  if (source_->peek() == '"') {
    take_quoted(take_into_field);
  }
  // Python's csv module also appends text after a closing quotation mark.
  for (int byte = source_->peek(); byte >= 0 && byte != ',' && byte != '\r' && byte != '\n';
       byte = source_->peek()) {
    take_into_field();
  }
  return field;
}

template <class Take>
void RecordStream::take_quoted(const Take& take_into_field) {
  const std::int64_t begin = source_->line();
  source_->take();
  while (true) {
    const int byte = source_->peek();
    if (byte < 0) {
      source_->refuse(
          fmt::format("the quoted field that begins in line {} does not end: a quotation mark is "
                      "missing, or the file is cut short",
                      begin));
    }
    if (byte == '"') {
      source_->take();
      if (source_->peek() != '"') {
        return;
      }
    }
    take_into_field();
  }
}

}  // namespace jforge
