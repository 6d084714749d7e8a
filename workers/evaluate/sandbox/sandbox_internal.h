#pragma once

/// The parts of a sandbox (sandbox.h).

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tasks/code_runner.h"
#include "workers/evaluate/sandbox/process_start.h"
#include "workers/evaluate/sandbox/sandbox_process.h"

namespace jforge {

/// The text of harness.py.
[[nodiscard]] const char* harness_source();

/// The executable made of sandbox_init.c.
[[nodiscard]] std::string_view sandbox_init_image();

/// Allows all but the following. EPERM, so that the program goes on: new processes (not threads),
/// mounts, namespaces, sockets other than AF_UNIX, keys, performance counters, io_uring,
/// userfaultfd, personality and the like, prctl(PR_SET_PDEATHSIG). Kill: tracing, other processes'
/// memory, kernel modules, BPF, kexec, reboot, swap, ports, foreign system call tables. Throws
/// EnvironmentError if libseccomp fails.
[[nodiscard]] std::vector<sock_filter> make_seccomp_filter();

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

struct FailedStep {
  const char* what = nullptr;  ///< Null: no failure.
  int error = 0;
};

/// Runs in the child, in fresh user, mount and pid namespaces; allocates nothing. Maps its user,
/// makes the read-only root of `plan` with its tmpfs, and drops all capabilities. `user` and
/// `group`: outer ids.
[[nodiscard]] FailedStep enter_namespaces(const NamespacePlan& plan, uid_t user, gid_t group);

/// As CodeRunner::run; sets `python_version` if not null.
[[nodiscard]] CodeRunResult run_in_sandbox(const SandboxSetup& setup, const CodeRunRequest& request,
                                           const CodeValueSink& sink,
                                           std::string* python_version = nullptr);

}  // namespace jforge
