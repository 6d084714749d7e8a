#pragma once

/// Events with rank and phase, through spdlog. Console (stderr): rank 0 from info, other ranks from
/// warn. File: every rank its own, logs/rank_0000.log, from debug.

#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>

#include "runtime/ids.h"

namespace jforge {

/// Sets the process-wide logger up. Call once, before threads. Level: "debug", "info", "warn",
/// "error".
void initialise_log(Rank rank, const std::string& console_level = "info");
/// Adds the rank's log file under `directory` (created when missing). Throws EnvironmentError when
/// not writable.
void add_log_file(const std::filesystem::path& directory);
/// Shown in every line from now on ("start", "generate round 1", …). Thread-safe.
void set_log_phase(const std::string& phase);
/// Flush and drop the file sinks.
void close_log();

}  // namespace jforge
