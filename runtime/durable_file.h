#pragma once

/// Files that survive a crash (ARCHITECTURE.md "Durability"). Publish = temporary name, write,
/// fsync, rename, fsync the directory: a file that exists under its final name is complete, and is
/// never changed afterwards. Logs that grow are append_log.h's.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace jforge {

/// Writes `bytes` durably under `path`. Throws EnvironmentError naming the path and the system's
/// reason; on failure the old content of `path`, if any, is untouched and no temporary file stays.
void publish_file(const std::filesystem::path& path, std::string_view bytes);
/// As publish_file, under a path that a user has named: a link is followed, and what is there and
/// is no plain file (a device, a pipe) is written into. Throws EnvironmentError.
void write_output(const std::filesystem::path& path, std::string_view bytes);
/// Throws ConfigError where `path` is there and no plain file: what is published would replace it.
void expect_plain_output(const std::filesystem::path& path);
/// Replaces the content of an existing file in place, neither atomically nor durably: for signs of
/// life. Throws EnvironmentError.
void overwrite_file(const std::filesystem::path& path, std::string_view bytes);
/// As publish_file, but not durable: after a crash of the machine the file may be the old one, or
/// damaged. For what only shows progress and is written often.
void replace_file(const std::filesystem::path& path, std::string_view bytes);
/// Tells this process's temporary files from those of any other, on this host or another that
/// shares the file system: 8 hexadecimal digits.
[[nodiscard]] const std::string& temporary_suffix();
/// A name for a file that is to be published: it begins with ".tmp-" and lies in the same
/// directory. Unless it was published, the destructor removes the file.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& final_path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// fsync, rename to the final name, fsync of the directory. The file is written and closed.
  /// Throws EnvironmentError.
  void publish();
  /// The file has another name by now, or is another's to remove.
  void release() noexcept { path_.clear(); }

 private:
  std::filesystem::path final_path_;
  std::filesystem::path path_;
};

/// As publish_file for files that a library writes: `write` gets the temporary path, writes and
/// closes it.
void publish_with(const std::filesystem::path& path,
                  const std::function<void(const std::filesystem::path&)>& write);
/// The halves of publish_with for two-step commits: fsync a finished temporary file; rename it and
/// fsync the directory.
void sync_file(const std::filesystem::path& path);
void commit_rename(const std::filesystem::path& temporary, const std::filesystem::path& final_path);
/// fsync of a directory (its entries).
void sync_directory(const std::filesystem::path& directory);
/// Creates a directory and its parents durably. Throws EnvironmentError.
void make_directory(const std::filesystem::path& directory);
/// Removes files and directories under `directory` whose names start with ".tmp-". Returns how
/// many.
std::size_t sweep_temporaries(const std::filesystem::path& directory);

}  // namespace jforge
