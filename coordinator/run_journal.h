#pragma once

/// What happened when, for people: one JSON line per event in journal.jsonl. Advisory: the truth is
/// in committed shards and manifests.

#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/append_log.h"

namespace jforge {

class RunJournal {
 public:
  explicit RunJournal(const std::filesystem::path& run_directory);
  /// Thread-safe. Adds "time" (UTC, ISO 8601) and "event", and seals the line. Bytes that are not
  /// UTF-8 become U+FFFD.
  void record(std::string_view event, const nlohmann::json& details = nlohmann::json::object());

 private:
  std::mutex mutex_;
  AppendLog log_;
};

/// run.json: {"status": running | interrupted | finished | failed, "phase", "attempt", "ranks",
/// "host", …}, all described in results/README.md. Published durably, sealed
/// (runtime/text_seal.h). Bytes that are not UTF-8 become U+FFFD.
void write_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status);
/// The same for a status that only shows progress: readers see the old one or the new one, but a
/// machine that crashes may leave neither.
void show_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status);
/// The status written last, or null when there is none. Throws DataError naming the file when it is
/// damaged.
[[nodiscard]] nlohmann::json read_run_status(const std::filesystem::path& run_directory);

/// Now as "2025-01-31T12:00:00Z".
[[nodiscard]] std::string utc_now();

}  // namespace jforge
