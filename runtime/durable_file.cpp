#include "runtime/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <system_error>

#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/file_descriptor_internal.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {
constexpr std::string_view kTemporaryPrefix = ".tmp-";

/// Keeps another process's file of that name.
[[noreturn]] void throw_not_created(TemporaryFile& file, int error_number) {
  const std::filesystem::path path = file.path();
  file.release();
  throw_environment("create", path, error_number);
}

void write_or_throw(int descriptor, std::string_view bytes, const std::filesystem::path& path) {
  std::size_t done = 0;
  if (const int error_number = write_all(descriptor, bytes, done); error_number != 0) {
    throw_environment("write", path, error_number);
  }
}
}  // namespace

const std::string& temporary_suffix() {
  // Containers on several hosts may have equal process ids.
  static const std::string suffix = fmt::format("{:08x}", std::random_device()());
  return suffix;
}

TemporaryFile::TemporaryFile(const std::filesystem::path& final_path) : final_path_(final_path) {
  static std::atomic<unsigned> counter{0};
  path_ = final_path.parent_path() / fmt::format("{}{}-{}-{}-{}", kTemporaryPrefix,
                                                 final_path.filename().string(), ::getpid(),
                                                 temporary_suffix(), counter.fetch_add(1));
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) {
    ::unlink(path_.c_str());
  }
}

void TemporaryFile::publish() {
  fault_point("publish.data");
  sync_file(path_);
  commit_rename(path_, final_path_);
  release();
}

void publish_file(const std::filesystem::path& path, std::string_view bytes) {
  TemporaryFile temporary(path);
  Descriptor file(open_retrying(temporary.path(), O_WRONLY | O_CREAT | O_EXCL, 0666));
  if (file.get() < 0) {
    throw_not_created(temporary, errno);
  }
  // In two halves, so that a kill here leaves a partial file.
  write_or_throw(file.get(), bytes.substr(0, bytes.size() / 2), path);
  fault_point("publish.data");
  write_or_throw(file.get(), bytes.substr(bytes.size() / 2), path);
  fault_point("publish.fsync");
  if (const int error_number = sync_descriptor(file.get()); error_number != 0) {
    throw_environment("fsync", path, error_number);
  }
  file.close_checked(path);
  commit_rename(temporary.path(), path);
  temporary.release();
}

void write_output(const std::filesystem::path& path, std::string_view bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    Descriptor file(open_retrying(path, O_WRONLY));
    if (file.get() < 0) {
      throw_environment("open", path, errno);
    }
    write_or_throw(file.get(), bytes, path);
    file.close_checked(path);
    return;
  }
  const bool is_link = std::filesystem::is_symlink(path, error);
  publish_file(is_link ? std::filesystem::weakly_canonical(
                             path.parent_path() / std::filesystem::read_symlink(path, error), error)
                       : path,
               bytes);
}

void expect_plain_output(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw ConfigError(path.string() + " exists and is not a regular file; name another one");
  }
}

void overwrite_file(const std::filesystem::path& path, std::string_view bytes) {
  // Truncates last: overwriting works on a full disk, but a file emptied first could stay empty.
  Descriptor file(open_retrying(path, O_WRONLY));
  if (file.get() < 0) {
    throw_environment("open", path, errno);
  }
  write_or_throw(file.get(), bytes, path);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes.size())) != 0) {
    throw_environment("shorten", path, errno);
  }
  file.close_checked(path);
}

void replace_file(const std::filesystem::path& path, std::string_view bytes) {
  TemporaryFile temporary(path);
  Descriptor file(open_retrying(temporary.path(), O_WRONLY | O_CREAT | O_EXCL, 0666));
  if (file.get() < 0) {
    throw_not_created(temporary, errno);
  }
  write_or_throw(file.get(), bytes, path);
  file.close_checked(path);
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) {
    throw_environment("rename " + temporary.path().string() + " to", path, errno);
  }
  temporary.release();
}

void publish_with(const std::filesystem::path& path,
                  const std::function<void(const std::filesystem::path&)>& write) {
  TemporaryFile temporary(path);
  write(temporary.path());
  temporary.publish();
}

void sync_file(const std::filesystem::path& path) {
  fault_point("publish.fsync");
  Descriptor file(open_retrying(path, O_RDONLY));
  if (file.get() < 0) {
    throw_environment("open for fsync", path, errno);
  }
  if (const int error_number = sync_descriptor(file.get()); error_number != 0) {
    throw_environment("fsync", path, error_number);
  }
}

void commit_rename(const std::filesystem::path& temporary,
                   const std::filesystem::path& final_path) {
  fault_point("publish.rename");
  if (::rename(temporary.c_str(), final_path.c_str()) != 0) {
    throw_environment("rename " + temporary.string() + " to", final_path, errno);
  }
  fault_point("publish.directory");
  sync_directory(parent_of(final_path));
}

void sync_directory(const std::filesystem::path& directory) {
  Descriptor handle(open_retrying(directory, O_RDONLY | O_DIRECTORY));
  if (handle.get() < 0) {
    throw_environment("open directory", directory, errno);
  }
  // Some network file systems answer EINVAL: they need no directory fsync.
  if (const int error_number = sync_descriptor(handle.get());
      error_number != 0 && error_number != EINVAL) {
    throw_environment("fsync directory", directory, error_number);
  }
}

void make_directory(const std::filesystem::path& directory) {
  expect(!directory.empty(), "make_directory needs a name");
  std::error_code reason;
  if (std::filesystem::is_directory(directory, reason)) {
    return;
  }
  const auto plain = directory.has_filename() ? directory : directory.parent_path();
  const auto parent = parent_of(plain);
  if (parent != plain) {
    make_directory(parent);
  }
  // Another rank may create it at the same moment.
  if (::mkdir(plain.c_str(), 0777) != 0 &&
      (errno != EEXIST || !std::filesystem::is_directory(plain, reason))) {
    throw_environment("create directory", plain, errno == EEXIST ? ENOTDIR : errno);
  }
  sync_directory(parent);
}

std::size_t sweep_temporaries(const std::filesystem::path& directory) {
  std::error_code reason;
  std::filesystem::directory_iterator entry(directory, reason);
  if (reason == std::errc::no_such_file_or_directory) {
    return 0;
  }
  std::size_t removed = 0;
  // Other ranks may sweep at the same time, so a missing entry is not an error.
  for (const std::filesystem::directory_iterator end; !reason && entry != end;
       entry.increment(reason)) {
    std::error_code removal;
    if (entry->path().filename().string().starts_with(kTemporaryPrefix)) {
      const auto count = std::filesystem::remove_all(entry->path(), removal);
      if (removal && removal != std::errc::no_such_file_or_directory) {
        throw_environment("remove", entry->path(), removal.value());
      }
      removed += count > 0 ? 1 : 0;
    } else if (entry->is_directory(removal) && !entry->is_symlink(removal)) {
      removed += sweep_temporaries(entry->path());
    }
  }
  if (reason) {
    throw_environment("list directory", directory, reason.value());
  }
  return removed;
}

}  // namespace jforge
