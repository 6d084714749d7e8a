/* LD_PRELOAD library for tests that makes a system call on the files of a directory fail:
 *
 *   JFORGE_IO_ROOT=TEXT: affects and counts only files whose path begins with TEXT.
 *
 *   JFORGE_IO_FAULT=CALL:N:ERROR[:TEXT]: the Nth CALL (from 1) fails with ERROR; with TEXT, only
 * calls on paths that contain it after the root count. CALL is write, fsync, rename, link, open,
 * close or read (without mapped pages); ERROR is EIO, ENOSPC, EINTR, EPERM, ESTALE, or SHORT (write
 * only: writes half of the bytes). With "N+" all later calls fail, too.
 *
 *   JFORGE_IO_COUNT=FILE: receives a line "CALL COUNT" for each call at exit.
 *
 * A fault that takes effect is reported on standard error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum call {
  CALL_WRITE,
  CALL_FSYNC,
  CALL_RENAME,
  CALL_LINK,
  CALL_OPEN,
  CALL_CLOSE,
  CALL_READ,
  CALLS
};

static const char* const kCallNames[CALLS] = {"write", "fsync", "rename", "link",
                                              "open",  "close", "read"};
enum { NO_ERROR = 0, SHORT_WRITE = -1 };

static atomic_long counts[CALLS];
static char root[PATH_MAX];
static char filter[256];
static char count_file[PATH_MAX];
static int fault_call = -1;
static long fault_number;
static int fault_repeats;
static int fault_error;

static int error_number(const char* name) {
  if (strcmp(name, "EIO") == 0) return EIO;
  if (strcmp(name, "ENOSPC") == 0) return ENOSPC;
  if (strcmp(name, "EINTR") == 0) return EINTR;
  if (strcmp(name, "EPERM") == 0) return EPERM;
  if (strcmp(name, "ESTALE") == 0) return ESTALE;
  if (strcmp(name, "SHORT") == 0) return SHORT_WRITE;
  return NO_ERROR;
}

__attribute__((constructor)) static void read_environment(void) {
  const char* value = getenv("JFORGE_IO_ROOT");
  if (value != NULL) snprintf(root, sizeof(root), "%s", value);
  value = getenv("JFORGE_IO_COUNT");
  if (value != NULL) snprintf(count_file, sizeof(count_file), "%s", value);
  value = getenv("JFORGE_IO_FAULT");
  if (value == NULL) return;
  char call[16] = "", number[16] = "", error[16] = "";
  if (sscanf(value, "%15[^:]:%15[^:]:%15[^:]:%255s", call, number, error, filter) < 3) {
    fprintf(stderr, "io fault: \"%s\" is not CALL:N:ERROR[:TEXT]\n", value);
    _exit(2);
  }
  for (int i = 0; i < CALLS; ++i) {
    if (strcmp(call, kCallNames[i]) == 0) fault_call = i;
  }
  char* rest = NULL;
  fault_number = strtol(number, &rest, 10);
  fault_repeats = rest != NULL && *rest == '+';
  fault_error = error_number(error);
  if (fault_call < 0 || fault_number < 1 || fault_error == NO_ERROR) {
    fprintf(stderr, "io fault: \"%s\" has an unknown call, number or error\n", value);
    _exit(2);
  }
}

__attribute__((destructor)) static void write_counts(void) {
  if (count_file[0] == '\0') return;
  /* MPI's helpers inherit the environment and end later, without touching the files. */
  long total = 0;
  for (int i = 0; i < CALLS; ++i) total += atomic_load(&counts[i]);
  if (total == 0) return;
  FILE* file = fopen(count_file, "w");
  if (file == NULL) return;
  for (int i = 0; i < CALLS; ++i) fprintf(file, "%s %ld\n", kCallNames[i], atomic_load(&counts[i]));
  fclose(file);
}

/* Returns NO_ERROR, SHORT_WRITE or an error number for a call on this path. */
static int judge(enum call call, const char* path) {
  if (root[0] == '\0' || strncmp(path, root, strlen(root)) != 0) return NO_ERROR;
  const int ours = (int)call == fault_call;
  if (ours && filter[0] != '\0' && strstr(path + strlen(root), filter) == NULL) return NO_ERROR;
  const long number = atomic_fetch_add(&counts[call], 1) + 1;
  if (!ours || (number != fault_number && !(fault_repeats && number > fault_number)))
    return NO_ERROR;
  fprintf(stderr, "io fault: %s number %ld on %s fails now\n", kCallNames[call], number, path);
  return fault_error;
}

static int judge_descriptor(enum call call, int descriptor) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length <= 0) return NO_ERROR;
  path[length] = '\0';
  return judge(call, path);
}

#define REAL(type, name) \
  static type real;      \
  if (real == NULL) *(void**)(&real) = dlsym(RTLD_NEXT, name)

typedef ssize_t (*write_function)(int, const void*, size_t);
typedef ssize_t (*pwrite_function)(int, const void*, size_t, off_t);
typedef ssize_t (*writev_function)(int, const struct iovec*, int);
typedef int (*descriptor_function)(int);
typedef int (*rename_function)(const char*, const char*);
typedef int (*open_function)(const char*, int, ...);

ssize_t write(int descriptor, const void* bytes, size_t size) {
  REAL(write_function, "write");
  const int verdict = judge_descriptor(CALL_WRITE, descriptor);
  if (verdict > 0) return errno = verdict, -1;
  return real(descriptor, bytes, verdict == SHORT_WRITE && size > 1 ? size / 2 : size);
}

#define SAME_AS(name) __attribute__((alias(name))) /* as on 64-bit systems */
ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  REAL(pwrite_function, "pwrite");
  const int verdict = judge_descriptor(CALL_WRITE, descriptor);
  if (verdict > 0) return errno = verdict, -1;
  return real(descriptor, bytes, verdict == SHORT_WRITE && size > 1 ? size / 2 : size, offset);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) SAME_AS("pwrite");

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  REAL(writev_function, "writev");
  const int verdict = judge_descriptor(CALL_WRITE, descriptor);
  if (verdict > 0) return errno = verdict, -1;
  if (verdict == SHORT_WRITE && parts[0].iov_len > 1)
    return write(descriptor, parts[0].iov_base, parts[0].iov_len / 2);
  return real(descriptor, parts, count);
}

typedef ssize_t (*read_function)(int, void*, size_t);
typedef ssize_t (*pread_function)(int, void*, size_t, off_t);

ssize_t read(int descriptor, void* bytes, size_t size) {
  REAL(read_function, "read");
  const int verdict = judge_descriptor(CALL_READ, descriptor);
  if (verdict > 0) return errno = verdict, -1;
  return real(descriptor, bytes, size);
}

ssize_t pread(int descriptor, void* bytes, size_t size, off_t offset) {
  REAL(pread_function, "pread");
  const int verdict = judge_descriptor(CALL_READ, descriptor);
  if (verdict > 0) return errno = verdict, -1;
  return real(descriptor, bytes, size, offset);
}
ssize_t pread64(int descriptor, void* bytes, size_t size, off64_t offset) SAME_AS("pread");

int fsync(int descriptor) {
  REAL(descriptor_function, "fsync");
  const int verdict = judge_descriptor(CALL_FSYNC, descriptor);
  if (verdict != NO_ERROR) return errno = verdict, -1;
  return real(descriptor);
}

int fdatasync(int descriptor) {
  REAL(descriptor_function, "fdatasync");
  const int verdict = judge_descriptor(CALL_FSYNC, descriptor);
  if (verdict != NO_ERROR) return errno = verdict, -1;
  return real(descriptor);
}

int close(int descriptor) {
  REAL(descriptor_function, "close");
  const int verdict = judge_descriptor(CALL_CLOSE, descriptor);
  const int result = real(descriptor); /* Linux frees the descriptor even if close fails. */
  if (verdict != NO_ERROR) return errno = verdict, -1;
  return result;
}

int rename(const char* from, const char* to) {
  REAL(rename_function, "rename");
  const int verdict = judge(CALL_RENAME, to);
  if (verdict != NO_ERROR) return errno = verdict, -1;
  return real(from, to);
}

int link(const char* from, const char* to) {
  REAL(rename_function, "link");
  const int verdict = judge(CALL_LINK, to);
  if (verdict != NO_ERROR) return errno = verdict, -1;
  return real(from, to);
}

int open(const char* path, int flags, ...) {
  REAL(open_function, "open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const int verdict = judge(CALL_OPEN, path);
  if (verdict != NO_ERROR) return errno = verdict, -1;
  return real(path, flags, mode);
}
int open64(const char* path, int flags, ...) SAME_AS("open");
