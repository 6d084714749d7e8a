#pragma once

/// Shell completion. Each shell's script calls `jforge __complete`, so candidates come from the
/// parser of the installed program.

#include <map>
#include <span>
#include <string>

#include "launch/shell/command_description.h"

namespace jforge {

/// Returns the scripts by shell name, to be sourced or installed.
[[nodiscard]] const std::map<std::string, const char*>& completion_scripts();

/// Returns the candidates for the last of `words`, the command line after the program's name; it
/// may be empty. A candidate is a line "WORD\tDESCRIPTION". A last line ":file", ":dir" or ":toml"
/// asks the shell for files, directories or TOML files.
[[nodiscard]] std::string completion_candidates(const CommandDescription& program,
                                                std::span<const std::string> words);

}  // namespace jforge
