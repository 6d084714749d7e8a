#pragma once

/// What happened when, for people: one JSON line per event in journal.jsonl. Advisory: the truth is
/// in committed shards and manifests.

#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/durable_file.h"

namespace jforge {

class RunJournal {
 public:
  explicit RunJournal(const std::filesystem::path& run_directory);
  /// Thread-safe. Adds "time" (UTC, ISO 8601) and "event". Bytes that are not UTF-8 become U+FFFD.
  void record(std::string_view event, nlohmann::json details = nlohmann::json::object());

 private:
  std::mutex mutex_;
  AppendLog log_;
};

/// run.json: {"status": running | interrupted | finished | failed, "phase", "attempt", "ranks",
/// "host", …}. Published durably. Bytes that are not UTF-8 become U+FFFD.
void write_run_status(const std::filesystem::path& run_directory, const nlohmann::json& status);
/// The status written last, or null when there is none.
[[nodiscard]] nlohmann::json read_run_status(const std::filesystem::path& run_directory);

/// Now as "2025-01-31T12:00:00Z".
[[nodiscard]] std::string utc_now();

}  // namespace jforge
