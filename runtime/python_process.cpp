#include "runtime/python_process.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "runtime/error.h"

namespace jforge {

PythonProcess::PythonProcess(const char* source, const std::vector<std::string>& arguments,
                             Purpose purpose)
    : purpose_(std::move(purpose)) {
  // A pipe would raise SIGPIPE here when the process has ended.
  std::array<int, 2> ends = {-1, -1};
  const bool connected = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0;
  stream_ = ends[0];
  messages_ = memfd_create("python_messages", MFD_CLOEXEC);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, messages_, STDERR_FILENO);
  // Ctrl-C, Slurm's and others' signals must not look like damaged data while this process stops.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  posix_spawnattr_setsigmask(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  std::vector<std::string> words{"python3", "-c", source};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int error =
      !connected || messages_ < 0
          ? errno
          : posix_spawnp(&process_, "python3", &files, &attributes, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  if (error != 0) {
    close(stream_);
    close(messages_);
    throw EnvironmentError(
        fmt::format("{}: {}, but python3 cannot be started ({}); install both "
                    "with: {}",
                    purpose_.subject, purpose_.need, std::strerror(error), purpose_.install));
  }
}

PythonProcess::~PythonProcess() {
  if (process_ > 0) {
    kill(-process_, SIGKILL);  // The group: python3 may be a script.
    wait();
  }
  close(stream_);
  close(messages_);
}

int PythonProcess::wait() {
  int status = 0;
  while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
  return status;
}

std::string PythonProcess::last_message() const {
  std::array<char, 4096> buffer{};
  const off_t size = lseek(messages_, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(buffer.size()));
  const ssize_t count = pread(messages_, buffer.data(), buffer.size(), from);
  std::string text(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  return text.substr(text.rfind('\n') + 1);
}

void PythonProcess::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(stream_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return;
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  }
}

std::size_t PythonProcess::read(std::span<char> out) {
  ssize_t count = 0;
  do {
    count = ::read(stream_, out.data(), out.size());
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    return static_cast<std::size_t>(count);
  }
  const int status = process_ > 0 ? wait() : 0;
  // Shells report a signal as 128 + signal.
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
  if (signal > 0) {
    throw EnvironmentError(
        fmt::format("{}: {}, but python3 was killed by signal {}; is there "
                    "enough memory?",
                    purpose_.subject, purpose_.need, signal));
  }
  const std::string message = fmt::format("{}: {}", purpose_.subject, last_message());
  switch (WEXITSTATUS(status)) {
    case 0:
      return 0;
    case static_cast<int>(ExitCode::input_data):
      throw DataError(message);
    default:
      throw EnvironmentError(message);
  }
}

}  // namespace jforge
