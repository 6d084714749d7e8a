#pragma once

/// Files that grow by whole records: logs, metrics, per-sample lines (ARCHITECTURE.md
/// "Durability").

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace jforge {

/// Log of one record per write(2). Not thread-safe.
class AppendLog {
 public:
  enum class Form : std::uint8_t {
    lines,    ///< One line per record, ended here. Opening cuts a torn last line.
    records,  ///< Bytes that frame themselves. The file must be new.
  };
  /// Throws EnvironmentError when the file cannot be opened.
  explicit AppendLog(const std::filesystem::path& path, Form form = Form::lines);
  ~AppendLog();
  AppendLog(AppendLog&& other) noexcept;
  AppendLog& operator=(AppendLog&& other) noexcept;
  AppendLog(const AppendLog&) = delete;
  AppendLog& operator=(const AppendLog&) = delete;
  /// A line must not hold a newline. With `durable`, fsync before return. A record that could not
  /// be written whole is taken back. Throws EnvironmentError.
  void append(std::string_view record, bool durable = false);

 private:
  int descriptor_ = -1;
  std::filesystem::path path_;
  Form form_ = Form::lines;
};

}  // namespace jforge
