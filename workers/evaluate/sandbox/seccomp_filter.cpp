#include <fmt/format.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/error.h"
#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace jforge {
namespace {

constexpr std::array kKilled{
    "ptrace",     "process_vm_readv", "process_vm_writev", "bpf",
    "kexec_load", "init_module",      "finit_module",      "delete_module",
    "reboot",     "swapon",           "kexec_file_load",   "swapoff",
    "iopl",       "ioperm",           "pidfd_getfd",
};

// Includes memory that no limit counts: memfd, System V and POSIX shared memory and queues, and
// pages that vmsplice leaves in a pipe (a reference to one byte keeps two megabytes).
//
// vfork, fork and clone without CLONE_THREAD are refused: nothing can outlive a program that stays
// one process, and only it can close its reply channel.
constexpr std::array kRefused{
    "fork",
    "vfork",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "umount",
    "pivot_root",
    "chroot",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "keyctl",
    "add_key",
    "request_key",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "personality",
    "acct",
    "quotactl",
    "quotactl_fd",
    "syslog",
    "sethostname",
    "setdomainname",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "open_by_handle_at",
    "name_to_handle_at",
    "fanotify_init",
    "lookup_dcookie",
    "nfsservctl",
    "vhangup",
    "kcmp",
    "mbind",
    "migrate_pages",
    "move_pages",
    "set_mempolicy",
    "get_mempolicy",
    "process_madvise",
    "pidfd_open",
    "pidfd_send_signal",
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "mknod",
    "mknodat",
    "setpriority",
    "sched_setscheduler",
    "sched_setattr",
    "sched_setaffinity",
    "ioprio_set",
    "memfd_create",
    "memfd_secret",
    "vmsplice",
    "msgget",
    "semget",
    "shmget",
    "mq_open",
};

class FilterContext {
 public:
  FilterContext() : context_(seccomp_init(SCMP_ACT_ALLOW)) {
    if (context_ == nullptr) {
      throw EnvironmentError("code sandbox: libseccomp could not start a filter");
    }
  }
  FilterContext(const FilterContext&) = delete;
  FilterContext& operator=(const FilterContext&) = delete;
  ~FilterContext() { seccomp_release(context_); }

  /// Skips names unknown to this architecture or libseccomp.
  void add(std::uint32_t action, const char* name) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number != __NR_SCMP_ERROR && number >= 0) {
      check(seccomp_rule_add(context_, action, number, 0), name);
    }
  }
  void add(std::uint32_t action, const char* name, scmp_arg_cmp condition) {
    check(
        seccomp_rule_add_array(context_, action, seccomp_syscall_resolve_name(name), 1, &condition),
        name);
  }
  [[nodiscard]] std::vector<sock_filter> program() const {
    const int file = memfd_create("seccomp", MFD_CLOEXEC);
    if (file < 0) {
      throw EnvironmentError(fmt::format("code sandbox: memfd_create: {}", std::strerror(errno)));
    }
    const int status = seccomp_export_bpf(context_, file);
    const off_t size = lseek(file, 0, SEEK_END);
    std::vector<sock_filter> program(static_cast<std::size_t>(size) / sizeof(sock_filter));
    const ssize_t got = pread(file, program.data(), program.size() * sizeof(sock_filter), 0);
    close(file);
    check(status, "export");
    if (got != size || program.empty()) {
      throw EnvironmentError("code sandbox: the seccomp filter could not be read back");
    }
    return program;
  }

 private:
  static void check(int status, const char* what) {
    if (status != 0) {
      throw EnvironmentError(
          fmt::format("code sandbox: seccomp filter, {}: {}", what, std::strerror(-status)));
    }
  }
  scmp_filter_ctx context_;
};

}  // namespace

std::vector<sock_filter> make_seccomp_filter() {
  FilterContext filter;
  for (const char* name : kKilled) {
    filter.add(SCMP_ACT_KILL_PROCESS, name);
  }
  for (const char* name : kRefused) {
    filter.add(SCMP_ACT_ERRNO(EPERM), name);
  }
  // The C library falls back to clone, whose flags a filter can read.
  filter.add(SCMP_ACT_ERRNO(ENOSYS), "clone3");
  filter.add(SCMP_ACT_ERRNO(EPERM), "clone",
             SCMP_A0(SCMP_CMP_MASKED_EQ, std::uint64_t{CLONE_THREAD}, std::uint64_t{0}));
  filter.add(SCMP_ACT_ERRNO(EPERM), "socket",
             SCMP_A0(SCMP_CMP_NE, std::uint64_t{AF_UNIX}, std::uint64_t{0}));
  // Would let a process survive its parent. The kernel reads only the argument's lower half.
  filter.add(SCMP_ACT_ERRNO(EPERM), "prctl",
             SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffUL, std::uint64_t{PR_SET_PDEATHSIG}));
  for (const auto request : {std::uint64_t{TIOCSTI}, std::uint64_t{TIOCLINUX}}) {
    filter.add(SCMP_ACT_ERRNO(EPERM), "ioctl", SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffUL, request));
  }
  return filter.program();
}

}  // namespace jforge
