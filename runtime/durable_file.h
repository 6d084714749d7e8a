#pragma once

/// Files that survive a crash (ARCHITECTURE.md "Durability"): written under a temporary name,
/// synced, renamed, directory synced. A file under its final name is complete and never changes.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace jforge {

/// Throws EnvironmentError with path and reason; then `path` is unchanged and no temporary stays.
void publish_file(const std::filesystem::path& path, std::string_view bytes);
/// As publish_file() for a user's path: follows links and writes into devices and pipes.
void write_output(const std::filesystem::path& path, std::string_view bytes);
/// Throws ConfigError if `path` exists and is not regular: publishing would replace it.
void expect_plain_output(const std::filesystem::path& path);
/// Overwrites in place, neither atomically nor durably. Throws EnvironmentError.
void overwrite_file(const std::filesystem::path& path, std::string_view bytes);
/// As publish_file() but not durable: a machine crash may leave an old or damaged file.
void replace_file(const std::filesystem::path& path, std::string_view bytes);
/// 8 hex digits, distinct per process, also between hosts that share a file system.
[[nodiscard]] const std::string& temporary_suffix();
/// A ".tmp-…" name in the final directory. The destructor removes an unpublished file.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& final_path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Syncs, renames, syncs the directory. Requires: the file is closed. Throws EnvironmentError.
  void publish();
  /// Keeps the file: it was renamed or belongs to another process.
  void release() noexcept { path_.clear(); }

 private:
  std::filesystem::path final_path_;
  std::filesystem::path path_;
};

/// As publish_file(): `write` must write and close the temporary path.
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
