#pragma once

/// Shell completion: each shell's script calls `jforge __complete`, which asks the parser.

#include <CLI/CLI.hpp>
#include <map>
#include <span>
#include <string>

namespace jforge {

/// Returns scripts by shell name.
[[nodiscard]] const std::map<std::string, const char*>& completion_scripts();

/// Returns candidates for the last of `given` (those after the program's name; it may be empty), a
/// line "WORD\tDESCRIPTION" each. The shell offers files if there is none.
[[nodiscard]] std::string completion_candidates(const CLI::App& program,
                                                std::span<const std::string> given);

}  // namespace jforge
