#pragma once

/// The command line: one subcommand per command of the architecture page.

#include <functional>
#include <optional>
#include <string>

#include "launch/commands/commands.h"
#include "launch/shell/command_description.h"

namespace jforge {

/// What the command line asks for.
struct CommandLine {
  /// True for commands that all ranks run together; the others run on rank 0 alone.
  bool distributed = false;
  /// Faults to arm (`--inject`); empty in normal use.
  std::string inject;
  /// Runs the command. `session` is null for a single-process command started without mpirun.
  std::function<ExitCode(const MpiSession* session)> run;
};

/// Parses argv. Prints help or version itself and then returns nothing with `exit_code` set to ok;
/// on a bad command line it prints one line and sets usage. A `silent` one prints neither: another
/// rank with the same command line does.
[[nodiscard]] std::optional<CommandLine> parse_command_line(int argc, char** argv,
                                                            ExitCode& exit_code,
                                                            bool silent = false);

/// Commands and options of that parser.
[[nodiscard]] CommandDescription describe_command_line();

/// Returns the answer to `jforge __complete -- WORD...`, which the scripts of shells call
/// (shell/shell_completion.h), and nothing for every other command line.
[[nodiscard]] std::optional<std::string> asked_completions(int argc, char** argv);

}  // namespace jforge
