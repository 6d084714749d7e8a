#include "data/prompts/parquet_rows.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "runtime/error.h"

namespace jforge {

ParquetRows::ParquetRows(const std::filesystem::path& path) : path_(path.string()) {
  int write_end = -1;
  if (int ends[2]; pipe2(ends, O_CLOEXEC) == 0) {
    rows_ = ends[0];
    write_end = ends[1];
  }
  messages_ = memfd_create("parquet_messages", MFD_CLOEXEC);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, messages_, STDERR_FILENO);
  // A separate process group, so that Ctrl-C does not look like a damaged file.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::array<std::string, 4> words{"python3", "-c", parquet_rows_source(), path_};
  std::array<char*, 5> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    arguments[i] = words[i].data();
  }
  const int error =
      write_end < 0 || messages_ < 0
          ? errno
          : posix_spawnp(&process_, "python3", &files, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(write_end);
  if (error != 0) {
    process_ = -1;
    close(rows_);
    close(messages_);
    throw EnvironmentError(
        fmt::format("{}: a Parquet file is read with Python's pyarrow, but python3 cannot be "
                    "started ({}); install both with: apt-get install python3-venv && python3 -m "
                    "venv ~/jforge-python && . ~/jforge-python/bin/activate && pip install pyarrow",
                    path_, std::strerror(error)));
  }
}

ParquetRows::~ParquetRows() {
  if (process_ > 0) {
    kill(-process_, SIGKILL);  // The group: python3 may be a script.
    wait();
  }
  close(rows_);
  close(messages_);
}

int ParquetRows::wait() {
  int status = 0;
  while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
  return status;
}

std::string ParquetRows::last_message() const {
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

std::size_t ParquetRows::read(std::span<char> out) {
  ssize_t count = 0;
  do {
    count = ::read(rows_, out.data(), out.size());
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    return static_cast<std::size_t>(count);
  }
  const int status = process_ > 0 ? wait() : 0;
  // Shells report a signal as 128 + signal.
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
  if (signal > 0) {
    throw EnvironmentError(fmt::format(
        "{}: python3, which reads the Parquet file, was killed by signal {}; is there enough "
        "memory?",
        path_, signal));
  }
  const std::string message = fmt::format("{}: {}", path_, last_message());
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
