#pragma once

/// Logging with rank and phase, through spdlog. Console (stderr): rank 0 from info, other ranks
/// from warn. One file per rank (logs/rank_0000.log), from debug.

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/ids.h"

namespace jforge {

/// Call once, before threads start. Level: "debug", "info", "warn", "error".
void initialise_log(Rank rank, const std::string& console_level = "info");
/// Adds the rank's file under `directory`, created if missing. Throws EnvironmentError.
void add_log_file(const std::filesystem::path& directory);
/// Sets the phase shown in every line ("start", "generate round 1", …). Thread-safe.
void set_log_phase(const std::string& phase);
void close_log();

enum class LogLevel : std::uint8_t { debug, info, warn, error, critical };
/// Logs one line. Thread-safe.
void log_line(LogLevel level, std::string_view text);

// Each logs one line, formatted by {fmt}. spdlog's own functions would compile its formatter into
// every file that calls them, which takes seconds.
template <class... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::debug, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::info, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::warn, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::error, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void log_critical(fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::critical, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace jforge
