#pragma once

/// Completion of `jforge` in shells, as scripts that need nothing but the shell: commands, options,
/// the words that values may be, configuration keys with theirs, files and directories.

#include <string>
#include <vector>

#include "launch/shell/command_description.h"

namespace jforge {

/// The shells that have a script.
[[nodiscard]] std::vector<std::string> completion_shells();

/// The script for `shell`, which is to be sourced or installed where the shell looks for such
/// scripts. ConfigError for another shell than those of completion_shells().
[[nodiscard]] std::string completion_script(const std::string& shell,
                                            const CommandDescription& program);

}  // namespace jforge
