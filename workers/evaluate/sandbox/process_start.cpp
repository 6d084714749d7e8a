#include "workers/evaluate/sandbox/process_start.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "runtime/error.h"
#include "workers/evaluate/sandbox/sandbox_internal.h"

namespace jforge {
namespace {

constexpr std::size_t kCloneStackBytes = std::size_t{256} * 1024;
constexpr unsigned kNobody = 65534;
// Descriptors are first moved above every target.
constexpr int kClear = 400;

/// Shared by the sleeping parent and its children.
struct Start {
  const StartPlan* plan = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  std::byte* inner_stack = nullptr;
  std::vector<int>* moved = nullptr;  ///< One per descriptor.
  uid_t user = 0;
  gid_t group = 0;
  pid_t inner = -1;
  FailedStep failed;
};

[[noreturn]] void give_up(Start& start, const char* what) {
  start.failed = {what, errno};
  _exit(127);
}

// Bare system calls: the library's set*id functions act on all threads of the parent.
void become_nobody(Start& start) {
  if (syscall(SYS_geteuid) != 0) {
    return;
  }
  (void)syscall(SYS_setgroups, 0, nullptr);
  // EINVAL: the namespace lacks that user, and "root" is an ordinary user outside.
  if ((syscall(SYS_setresgid, kNobody, kNobody, kNobody) != 0 && errno != EINVAL) ||
      (syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0 && errno != EINVAL)) {
    give_up(start, "becoming the user nobody");
  }
}

/// Closes descriptors in [first, end).
void close_between(unsigned first, unsigned end) {
  if (first < end) {
    (void)syscall(SYS_close_range, first, end - 1U, 0);
  }
}

void arrange_descriptors(Start& start) {
  const std::vector<DescriptorMove>& moves = start.plan->descriptors;
  for (std::size_t index = 0; index < moves.size(); ++index) {
    (*start.moved)[index] = fcntl(moves[index].from, F_DUPFD_CLOEXEC, kClear);
    if ((*start.moved)[index] < 0) {
      give_up(start, "duplicating a descriptor");
    }
  }
  unsigned next = 0;
  for (std::size_t index = 0; index < moves.size(); ++index) {
    if (dup2((*start.moved)[index], moves[index].to) < 0) {
      give_up(start, "placing a descriptor");
    }
    close_between(next, static_cast<unsigned>(moves[index].to));
    next = static_cast<unsigned>(moves[index].to) + 1U;
  }
  close_between(next, ~0U);
}

void reset_signals(Start& start) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    (void)sigaction(number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  // A signal that has arrived ends the child here, as intended.
  if (sigprocmask(SIG_SETMASK, &none, nullptr) != 0) {
    give_up(start, "unblocking signals");
  }
}

[[noreturn]] void execute(Start& start) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) {
    give_up(start, "asking to die with the parent");
  }
  (void)setsid();
  for (const ResourceLimit& limit : start.plan->limits) {
    const rlimit value{limit.value, limit.value + limit.beyond};
    if (setrlimit(static_cast<__rlimit_resource>(limit.resource), &value) != 0) {
      give_up(start, "setting a resource limit");
    }
  }
  umask(0077);
  reset_signals(start);
  if (start.plan->program_descriptor) {
    const int program = *start.plan->program_descriptor;
    (void)fcntl(program, F_SETFD, FD_CLOEXEC);
    (void)syscall(SYS_execveat, program, "", start.arguments, start.environment, AT_EMPTY_PATH);
    give_up(start, "executing the sandbox's first process");
  }
  execve(start.plan->program.c_str(), start.arguments, start.environment);
  give_up(start, "executing the program");
}

int inner_child(void* argument) {
  Start& start = *static_cast<Start*>(argument);
  start.failed = enter_namespaces(*start.plan->namespaces, start.user, start.group);
  if (start.failed.what != nullptr) {
    _exit(127);
  }
  execute(start);
}

int outer_child(void* argument) {
  Start& start = *static_cast<Start*>(argument);
  arrange_descriptors(start);
  become_nobody(start);
  if (start.plan->namespaces == nullptr) {
    execute(start);
  }
  start.user = static_cast<uid_t>(syscall(SYS_geteuid));
  start.group = static_cast<gid_t>(syscall(SYS_getegid));
  // Second step, so that the namespaces belong to the unprivileged user. CLONE_PARENT makes it this
  // program's child.
  start.inner = clone(inner_child, start.inner_stack + kCloneStackBytes,
                      CLONE_VM | CLONE_VFORK | CLONE_PARENT | CLONE_NEWUSER | CLONE_NEWPID |
                          CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | SIGCHLD,
                      argument);
  if (start.inner < 0) {
    give_up(start, "making namespaces");
  }
  _exit(0);
}

void reap(pid_t process) {
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
}

class Stacks {
 public:
  Stacks()
      : memory_(mmap(nullptr, 2 * kCloneStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)) {
    if (memory_ == MAP_FAILED) {
      throw EnvironmentError("code sandbox: no memory to start a process");
    }
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() { munmap(memory_, 2 * kCloneStackBytes); }
  [[nodiscard]] std::byte* outer() const { return static_cast<std::byte*>(memory_); }
  [[nodiscard]] std::byte* inner() const { return outer() + kCloneStackBytes; }

 private:
  void* memory_;
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

}  // namespace

pid_t start_process(const StartPlan& plan) {
  const Stacks stacks;
  const std::vector<char*> arguments = pointers(plan.arguments);
  const std::vector<char*> environment = pointers(plan.environment);
  std::vector<int> moved(plan.descriptors.size(), -1);
  Start start;
  start.plan = &plan;
  start.arguments = arguments.data();
  start.environment = environment.data();
  start.inner_stack = stacks.inner();
  start.moved = &moved;

  // A change of user makes the shared memory non-dumpable for this program too; one start at a
  // time, so that the flag can be restored.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const int dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
  // A handler in the child would run in this program's memory.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t outer = clone(outer_child, stacks.outer() + kCloneStackBytes,
                            CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
  const int error = errno;
  if (dumpable == 1) {
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (outer < 0) {
    throw EnvironmentError(
        fmt::format("code sandbox: cannot start a process: {}", std::strerror(error)));
  }
  if (plan.namespaces != nullptr || start.failed.what != nullptr) {
    reap(outer);
  }
  if (start.failed.what != nullptr) {
    if (start.inner > 0) {
      reap(start.inner);
    }
    throw EnvironmentError(fmt::format("code sandbox: {} failed: {}", start.failed.what,
                                       std::strerror(start.failed.error)));
  }
  return plan.namespaces != nullptr ? start.inner : outer;
}

}  // namespace jforge
