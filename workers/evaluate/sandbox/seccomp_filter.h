#pragma once

#include <linux/filter.h>

#include <vector>

namespace jforge {

/// Allows all but the following. EPERM, so that the program goes on: new processes (not threads),
/// mounts, namespaces, sockets other than AF_UNIX, keys, performance counters, io_uring,
/// userfaultfd, personality and the like, prctl(PR_SET_PDEATHSIG). Kill: tracing, other processes'
/// memory, kernel modules, BPF, kexec, reboot, swap, ports, foreign system call tables. Throws
/// EnvironmentError if libseccomp fails.
[[nodiscard]] std::vector<sock_filter> make_seccomp_filter();

}  // namespace jforge
