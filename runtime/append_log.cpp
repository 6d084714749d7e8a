#include "runtime/append_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/file_descriptor_internal.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {
/// Returns the length up to and including the last newline.
off_t complete_length(int descriptor, off_t size, const std::filesystem::path& path) {
  std::vector<char> chunk(std::size_t{1} << 16);
  off_t end = size;
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(chunk.size()));
    const auto wanted = static_cast<std::size_t>(end - begin);
    std::size_t have = 0;
    while (have < wanted) {
      const ssize_t count =
          ::pread(descriptor, chunk.data() + have, wanted - have, begin + static_cast<off_t>(have));
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        throw_environment("read", path, count < 0 ? errno : EIO);
      }
      have += static_cast<std::size_t>(count);
    }
    const auto last = std::string_view(chunk.data(), wanted).rfind('\n');
    if (last != std::string_view::npos) {
      return begin + static_cast<off_t>(last) + 1;
    }
    end = begin;
  }
  return 0;
}

off_t file_size(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    throw_environment("examine", path, errno);
  }
  return status.st_size;
}
}  // namespace

AppendLog::AppendLog(const std::filesystem::path& path, Form form)
    : descriptor_(open_retrying(
          path, O_RDWR | O_CREAT | O_APPEND | (form == Form::records ? O_EXCL : 0), 0666)),
      path_(path),
      form_(form) {
  if (descriptor_ < 0) {
    throw_environment("open", path, errno);
  }
  // A throwing constructor does not run the destructor.
  try {
    const off_t size = file_size(descriptor_, path);
    const off_t complete = complete_length(descriptor_, size, path);
    if (complete != size && ::ftruncate(descriptor_, complete) != 0) {
      throw_environment("cut the torn last line of", path, errno);
    }
    sync_directory(parent_of(path));
  } catch (...) {
    ::close(std::exchange(descriptor_, -1));
    throw;
  }
}

AppendLog::~AppendLog() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

AppendLog::AppendLog(AppendLog&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      form_(other.form_) {}

AppendLog& AppendLog::operator=(AppendLog&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    descriptor_ = std::exchange(other.descriptor_, -1);
    path_ = std::move(other.path_);
    form_ = other.form_;
  }
  return *this;
}

void AppendLog::append(std::string_view record, bool durable) {
  expect(descriptor_ >= 0, "append to a log that was moved from");
  std::string bytes;
  bytes.reserve(record.size() + 1);
  bytes.append(record);
  if (form_ == Form::lines) {
    expect(record.find('\n') == std::string_view::npos, "a log record must not hold a newline");
    bytes.push_back('\n');
  }
  std::size_t done = 0;
  if (const int error_number = write_all(descriptor_, bytes, done); error_number != 0) {
    // A partial record would merge with the next one.
    const off_t size = file_size(descriptor_, path_);
    if (done > 0 && ::ftruncate(descriptor_, size - static_cast<off_t>(done)) != 0) {
      throw_environment("take back a half record of", path_, errno);
    }
    throw_environment("append to", path_, error_number);
  }
  if (durable) {
    if (const int error_number = sync_descriptor(descriptor_); error_number != 0) {
      throw_environment("fsync", path_, error_number);
    }
  }
}

}  // namespace jforge
