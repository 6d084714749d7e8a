#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace jforge {

/// Throws EnvironmentError "cannot ACTION PATH: reason" and `note`, with advice for a full disk.
[[noreturn]] void throw_environment(const std::string& action, const std::filesystem::path& path,
                                    int error_number, const std::string& note = {});
/// Throws DataError if the path names no file, else EnvironmentError: a system fault says nothing
/// of the file's content, so the file must not be discarded for it.
[[noreturn]] void throw_unread(const std::string& action, const std::filesystem::path& path,
                               int error_number, const std::string& note = {});
/// The same for opening, with "(waited …)".
[[noreturn]] void throw_unopened(const std::filesystem::path& path, int error_number,
                                 double waited_seconds = 0);

/// Closes itself; only close_checked() reports errors.
class Descriptor {
 public:
  explicit Descriptor(int value) noexcept : value_(value) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }
  /// Throws EnvironmentError; network file systems may report failed writes only here.
  void close_checked(const std::filesystem::path& path);

 private:
  int value_;
};

/// Writes everything or returns the error number; `done` counts the bytes written.
[[nodiscard]] int write_all(int descriptor, std::string_view bytes, std::size_t& done);
/// Returns 0 or the error number.
[[nodiscard]] int sync_descriptor(int descriptor);
/// Passes each chunk to `consume`. Throws as throw_unread().
void read_chunks(const std::filesystem::path& path, int descriptor,
                 const std::function<void(std::string_view)>& consume);
/// Returns "." for a plain name.
[[nodiscard]] std::filesystem::path parent_of(const std::filesystem::path& path);

}  // namespace jforge
