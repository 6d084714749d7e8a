#pragma once

/// Append-only files: logs, metrics, per-sample lines (ARCHITECTURE.md "Durability").

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace jforge {

/// Writes one record per write(2). Not thread-safe.
class AppendLog {
 public:
  enum class Form : std::uint8_t {
    lines,    ///< Adds a newline per record; opening cuts a torn last line.
    records,  ///< Self-framing bytes. The file must be new.
  };
  /// Throws EnvironmentError.
  explicit AppendLog(const std::filesystem::path& path, Form form = Form::lines);
  ~AppendLog();
  AppendLog(AppendLog&& other) noexcept;
  AppendLog& operator=(AppendLog&& other) noexcept;
  AppendLog(const AppendLog&) = delete;
  AppendLog& operator=(const AppendLog&) = delete;
  /// Requires: a line has no newline. If `durable`, syncs before returning. Removes a partly
  /// written record. Throws EnvironmentError.
  void append(std::string_view record, bool durable = false);

 private:
  int descriptor_ = -1;
  std::filesystem::path path_;
  Form form_ = Form::lines;
};

}  // namespace jforge
