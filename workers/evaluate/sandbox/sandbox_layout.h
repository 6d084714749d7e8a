#pragma once

/// What a sandboxed program sees of the machine, for both ways of making the sandbox.

#include <cstdint>
#include <string>
#include <vector>

#include "workers/evaluate/sandbox/process_start.h"

namespace jforge {

/// The only writable place inside.
inline constexpr const char* kWorkDirectory = "/tmp";
/// Where bubblewrap puts and finds the first process's program.
inline constexpr const char* kInitPath = "/init";

/// The system folders and devices of this machine that a Python program needs: programs, libraries,
/// time zones, /etc/alternatives and /etc/ld.so.cache, null, zero, full, random and urandom.
/// Neither /proc, /home, /usr/local nor the rest of /etc. `work_bytes`: size of the work directory.
[[nodiscard]] NamespacePlan make_namespace_plan(std::int64_t work_bytes);

/// Options for bubblewrap that make the same file system, namespaces and user, with kInitPath. The
/// descriptors are those inside bubblewrap: where it writes the first process's id, waits before it
/// goes on, and reads that process's program.
[[nodiscard]] std::vector<std::string> bubblewrap_options(const NamespacePlan& plan,
                                                          std::int64_t work_bytes,
                                                          int info_descriptor, int block_descriptor,
                                                          int init_descriptor);

}  // namespace jforge
