#pragma once

/// Files that survive a crash (ARCHITECTURE.md "Durability"). Publishing means: temporary name,
/// write, fsync, rename, fsync of the directory. A file under its final name is complete and never
/// changes.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace jforge {

/// Throws EnvironmentError naming the path and the system's reason; then `path` is unchanged and no
/// temporary file stays.
void publish_file(const std::filesystem::path& path, std::string_view bytes);
/// As publish_file() for a user's path: follows a link, and writes into a special file (device,
/// pipe).
void write_output(const std::filesystem::path& path, std::string_view bytes);
/// Throws ConfigError if `path` exists and is not a regular file, because publishing would replace
/// it.
void expect_plain_output(const std::filesystem::path& path);
/// Overwrites an existing file, neither atomically nor durably, for signs of life. Throws
/// EnvironmentError.
void overwrite_file(const std::filesystem::path& path, std::string_view bytes);
/// As publish_file() but not durable, for frequent progress files: a machine crash may leave the
/// old file or a damaged one.
void replace_file(const std::filesystem::path& path, std::string_view bytes);
/// 8 hex digits that distinguish this process's temporary files, also between hosts that share the
/// file system.
[[nodiscard]] const std::string& temporary_suffix();
/// A name beginning with ".tmp-" in the final directory. The destructor removes the file unless it
/// was published.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& final_path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Syncs, renames to the final name and syncs the directory. Requires: the file is written and
  /// closed. Throws EnvironmentError.
  void publish();
  /// Keeps the file: it was renamed or belongs to another process.
  void release() noexcept { path_.clear(); }

 private:
  std::filesystem::path final_path_;
  std::filesystem::path path_;
};

/// As publish_file() for files that a library writes: `write` writes and closes the temporary path.
void publish_with(const std::filesystem::path& path,
                  const std::function<void(const std::filesystem::path&)>& write);
/// The halves of publish_with(), for two-step commits.
void sync_file(const std::filesystem::path& path);
void commit_rename(const std::filesystem::path& temporary, const std::filesystem::path& final_path);
void sync_directory(const std::filesystem::path& directory);
/// Durably creates a directory and its parents. Throws EnvironmentError.
void make_directory(const std::filesystem::path& directory);
/// Removes everything under `directory` whose name starts with ".tmp-"; returns the count.
std::size_t sweep_temporaries(const std::filesystem::path& directory);

}  // namespace jforge
