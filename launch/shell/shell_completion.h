#pragma once

/// Shell completion: each shell's script calls `jforge __complete`, which uses the parser.

#include <map>
#include <span>
#include <string>

#include "launch/shell/command_description.h"

namespace jforge {

/// Returns scripts by shell name.
[[nodiscard]] const std::map<std::string, const char*>& completion_scripts();

/// Returns candidates for the last of `words` (those after the program's name; it may be empty), a
/// line "WORD\tDESCRIPTION" each. A last line ":file", ":dir" or ":toml" asks the shell for files,
/// directories or TOML files.
[[nodiscard]] std::string completion_candidates(const CommandDescription& program,
                                                std::span<const std::string> words);

}  // namespace jforge
