#pragma once

/// File system of a sandboxed program, for both kinds of sandbox.

#include <cstdint>
#include <string>
#include <vector>

#include "workers/evaluate/sandbox/process_start.h"

namespace jforge {

/// The only writable directory inside.
inline constexpr const char* kWorkDirectory = "/tmp";
/// Program of the first process under bubblewrap.
inline constexpr const char* kInitPath = "/init";

/// The system directories and devices that a Python program needs: programs, libraries, time zones,
/// /etc/alternatives, /etc/ld.so.cache, null, zero, full, random, urandom. No /proc, /home,
/// /usr/local or other /etc. `work_bytes`: size of the work directory.
[[nodiscard]] NamespacePlan make_namespace_plan(std::int64_t work_bytes);

/// Options with which bubblewrap makes the same sandbox, with kInitPath. Descriptors inside
/// bubblewrap: it writes the first process's id to `info`, waits for `block`, and reads the program
/// from `init`.
[[nodiscard]] std::vector<std::string> bubblewrap_options(const NamespacePlan& plan,
                                                          std::int64_t work_bytes,
                                                          int info_descriptor, int block_descriptor,
                                                          int init_descriptor);

}  // namespace jforge
