// First process of a sandbox's pid namespace (sandbox.h). When it ends, the kernel kills all others
// of the namespace. Nothing inside can kill, stop or trace it: signals from its own namespace do
// not reach it, and the program's filter refuses tracing. It ends with the program, after its time
// limit, or when the last writer of the lifeline is gone: jforge, however it died.
//
// Arguments: descriptor of the seccomp program, descriptor of the lifeline's read end, seconds, the
// program, its arguments. Exits with the program's status, or 128 + its signal.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kRefused = 127, kOverdue = 124, kSignal = 128, kDescriptors = 1024 };

static void fail(const char* what) {
  dprintf(STDERR_FILENO, "sandbox: %s: %s\n", what, strerror(errno));
  _exit(kRefused);
}

static struct sock_filter filter_code[BPF_MAXINSNS];

static struct sock_fprog read_filter(int descriptor) {
  size_t size = 0;
  ssize_t got = 0;
  do {
    got = read(descriptor, (char*)filter_code + size, sizeof(filter_code) - size);
    size += got > 0 ? (size_t)got : 0;
  } while (got > 0 && size < sizeof(filter_code));
  if (got < 0 || size == 0 || size % sizeof(struct sock_filter) != 0) {
    fail("reading the seccomp filter");
  }
  const struct sock_fprog program = {(unsigned short)(size / sizeof(struct sock_filter)),
                                     filter_code};
  return program;
}

static void run(const struct sock_fprog* filter, char** arguments, char** environment) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter) != 0) {
    fail("installing the seccomp filter");
  }
  execve(arguments[0], arguments, environment);
  fail("executing the interpreter");
}

static long long milliseconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

// Returns after the program's end; exits if the lifeline closes or the time is over.
static void watch(int program, int lifeline, long long seconds) {
  const long long end = milliseconds_now() + seconds * 1000;
  for (;;) {
    struct pollfd polled[2] = {{program, POLLIN, 0}, {lifeline, 0, 0}};
    const long long left = end - milliseconds_now();
    // At most 10 s at a time: poll's clock stops while the machine is suspended.
    const int ready = poll(polled, 2, left < 0 ? 0 : left < 10000 ? (int)left : 10000);
    if (ready > 0 && polled[0].revents != 0) {
      return;
    }
    if ((ready > 0 && polled[1].revents != 0) || (ready < 0 && errno != EINTR) || left <= 0) {
      _exit(kOverdue);
    }
  }
}

int main(int count, char** arguments, char** environment) {
  if (count < 5) {
    errno = EINVAL;
    fail("starting");
  }
  const int filter_descriptor = atoi(arguments[1]);
  const int lifeline = atoi(arguments[2]);
  const struct sock_fprog filter = read_filter(filter_descriptor);
  close(filter_descriptor);
  const pid_t process = fork();
  if (process < 0) {
    fail("starting the interpreter's process");
  }
  if (process == 0) {
    close(lifeline);
    run(&filter, arguments + 4, environment);
  }
  const int program = (int)syscall(SYS_pidfd_open, process, 0);
  if (program < 0) {
    fail("opening a handle of the interpreter");
  }
  // Only the program may hold the harness's pipes, or closing them would go unnoticed.
  for (int descriptor = 0; descriptor < kDescriptors; ++descriptor) {
    if (descriptor != program && descriptor != lifeline) {
      close(descriptor);
    }
  }
  watch(program, lifeline, atoll(arguments[3]));
  int status = 0;
  if (waitpid(process, &status, 0) != process) {
    _exit(kRefused);
  }
  _exit(WIFSIGNALED(status) ? kSignal + WTERMSIG(status) : WEXITSTATUS(status));
}
