#pragma once

/// What writing, reading, hashing and appending share of the system's calls.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace jforge {

/// Throws EnvironmentError "cannot ACTION PATH: reason" and `note`, with what to do about a full
/// disk.
[[noreturn]] void throw_environment(const std::string& action, const std::filesystem::path& path,
                                    int error_number, const std::string& note = {});
/// Throws for a file that cannot be read: DataError "cannot ACTION PATH: reason" where the path
/// names none, else EnvironmentError: what a file system answers for a while says nothing of what
/// the file holds, and nobody may throw it away for that.
[[noreturn]] void throw_unread(const std::string& action, const std::filesystem::path& path,
                               int error_number, const std::string& note = {});
/// The same of opening, with "(waited …)".
[[noreturn]] void throw_unopened(const std::filesystem::path& path, int error_number,
                                 double waited_seconds = 0);

/// A file descriptor that closes itself; close errors count only through close_checked().
class Descriptor {
 public:
  explicit Descriptor(int value) noexcept : value_(value) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }
  /// Network file systems may report a failed write only here. Throws EnvironmentError.
  void close_checked(const std::filesystem::path& path);

 private:
  int value_;
};

/// Writes everything or returns the error number; `done` counts bytes that reached the file.
[[nodiscard]] int write_all(int descriptor, std::string_view bytes, std::size_t& done);
/// fsync; 0 or the error number.
[[nodiscard]] int sync_descriptor(int descriptor);
/// Reads a file in chunks; `consume` gets each. Throws as throw_unread().
void read_chunks(const std::filesystem::path& path, int descriptor,
                 const std::function<void(std::string_view)>& consume);
/// "." for a plain name.
[[nodiscard]] std::filesystem::path parent_of(const std::filesystem::path& path);

}  // namespace jforge
