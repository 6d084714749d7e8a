#pragma once

/// The command line: one subcommand per command of the architecture page.

#include <functional>
#include <optional>
#include <string>

#include "launch/commands/commands.h"

namespace jforge {

/// A parsed command line.
struct CommandLine {
  bool distributed = false;  ///< All ranks run the command together; otherwise only rank 0 does.
  std::string inject;        ///< Faults to arm (`--inject`); empty in normal use.
  std::optional<double> stop_at;  ///< Seconds since the epoch (`--stop-at`).
  /// Runs the command. `session` is null for a single-process command started without mpirun.
  std::function<ExitCode(const MpiSession* session)> run;
};

/// Parses argv. If nothing is to run, prints help, the version or one line of error (unless
/// `silent`: another rank does), sets `exit_code` to ok or usage, and returns nothing.
[[nodiscard]] std::optional<CommandLine> parse_command_line(int argc, char** argv,
                                                            ExitCode& exit_code,
                                                            bool silent = false);

/// Returns the answer to `jforge __complete -- WORD...` (shell/shell_completion.h), else nothing.
[[nodiscard]] std::optional<std::string> asked_completions(int argc, char** argv);

}  // namespace jforge
