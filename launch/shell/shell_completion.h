#pragma once

/// Completion of `jforge` in shells. Each shell has a short script that calls `jforge __complete`,
/// so candidates come from the parser of the installed program.

#include <map>
#include <span>
#include <string>

#include "launch/shell/command_description.h"

namespace jforge {

/// Returns the scripts by the names of their shells, to be sourced or installed.
[[nodiscard]] const std::map<std::string, const char*>& completion_scripts();

/// Returns the candidates for the last of `words`, which may be empty; `words` are those of the
/// command line after the program's name. Each candidate is a line "WORD\tDESCRIPTION", and WORD
/// begins with the last word. A last line ":file", ":dir" or ":toml" asks the shell for files,
/// directories, or TOML files. Returns nothing if nothing fits.
[[nodiscard]] std::string completion_candidates(const CommandDescription& program,
                                                std::span<const std::string> words);

}  // namespace jforge
