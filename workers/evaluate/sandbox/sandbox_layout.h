#pragma once

/// File system of a sandboxed program, for both kinds of sandbox.

#include <cstdint>
#include <string>
#include <vector>

#include "workers/evaluate/sandbox/process_start.h"

namespace jforge {

/// The only writable directory inside.
inline constexpr const char* kWorkDirectory = "/tmp";
/// The first process's program under bubblewrap.
inline constexpr const char* kInitPath = "/init";

/// All that a Python program needs: programs, libraries, time zones, /etc/alternatives,
/// /etc/ld.so.cache, null, zero, full, random, urandom. No /proc, /home, /usr/local or other /etc.
/// `work_bytes`: size of the work directory.
[[nodiscard]] NamespacePlan make_namespace_plan(std::int64_t work_bytes);

/// Options for the same sandbox, with kInitPath. Descriptors inside bubblewrap: it writes the first
/// process's id to `info`, waits for `block` and reads the program from `init`.
[[nodiscard]] std::vector<std::string> bubblewrap_options(const NamespacePlan& plan,
                                                          std::int64_t work_bytes,
                                                          int info_descriptor, int block_descriptor,
                                                          int init_descriptor);

}  // namespace jforge
