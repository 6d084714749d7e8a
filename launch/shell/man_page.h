#pragma once

/// The man page: commands and options from the parser, keys from the configuration's list.

#include <string>
#include <vector>

#include "launch/shell/command_description.h"
#include "runtime/error.h"

namespace jforge {

/// What an exit code says; docs/commands.md has the same words (a test compares them).
struct ExitCodeMeaning {
  ExitCode code;
  const char* meaning;
};
[[nodiscard]] const std::vector<ExitCodeMeaning>& exit_code_meanings();

/// jforge(1) as roff for the man macros, in ASCII.
[[nodiscard]] std::string man_page(const CommandDescription& program);

}  // namespace jforge
