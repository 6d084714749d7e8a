#pragma once

#include <linux/filter.h>

#include <vector>

namespace jforge {

/// Returns a seccomp BPF program that allows all but the following. EPERM, so that the program goes
/// on: new processes (threads are allowed), namespaces, mounts, sockets other than AF_UNIX, keys,
/// performance counters, io_uring, userfaultfd, personality and the like, prctl(PR_SET_PDEATHSIG).
/// Kill: tracing, other processes' memory, kernel modules, BPF, kexec, reboot, swap, ports, foreign
/// system call tables. Throws EnvironmentError if libseccomp fails.
[[nodiscard]] std::vector<sock_filter> make_seccomp_filter();

}  // namespace jforge
