#pragma once

/// What a sandboxed program may ask of the kernel.

#include <linux/filter.h>

#include <vector>

namespace jforge {

/// Berkeley packet filter program for seccomp. Everything is allowed but: new processes (threads
/// stay), namespaces, mounts, sockets other than AF_UNIX, keys, performance counters, io_uring,
/// userfaultfd, personality and the like, and prctl(PR_SET_PDEATHSIG),
/// which fail with EPERM so that the program goes on; and
/// tracing, other processes' memory, kernel modules, BPF, kexec, reboot, swap and ports, which kill
/// it. Foreign system call tables kill it too. EnvironmentError when libseccomp cannot build it.
[[nodiscard]] std::vector<sock_filter> make_seccomp_filter();

}  // namespace jforge
