#pragma once

/// Handles over HDF5 identifiers, and the library's lock. Identifiers are passed as 64-bit
/// integers, so that HDF5's headers stay inside data/hdf5/*.cpp.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace jforge {

enum class Hdf5Kind : std::uint8_t { file, dataset, dataspace, datatype, attribute, property_list };

/// Owns an HDF5 identifier. Closing takes hdf5_lock() and never throws.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  /// Requires: `id` is valid (hdf5_check).
  Hdf5Handle(Hdf5Kind kind, std::int64_t id) : kind_(kind), id_(id) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept;
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  ~Hdf5Handle() { close(); }

  [[nodiscard]] std::int64_t id() const noexcept { return id_; }
  [[nodiscard]] bool valid() const noexcept { return id_ >= 0; }
  /// Returns false if HDF5 reports a failure (for example a flush to a full disk).
  bool close() noexcept;

 private:
  Hdf5Kind kind_ = Hdf5Kind::file;
  std::int64_t id_ = -1;
};

/// Recursive lock whose writers yield to readers: a checkpoint written slice by slice delays a
/// training step's read by at most one slice.
class Hdf5Mutex {
 public:
  void lock() { acquire(false); }  ///< For readers.
  void lock_after_readers() { acquire(true); }
  void unlock();
  [[nodiscard]] int readers_waiting();

 private:
  void acquire(bool gives_way);

  std::mutex mutex_;
  std::condition_variable freed_;
  std::thread::id owner_;
  int depth_ = 0;  ///< Recursion depth; 0 if free.
  int readers_waiting_ = 0;
};

enum class Hdf5Turn : std::uint8_t { read, write };

/// Takes the process-wide recursive lock of all HDF5 calls, because the library is built without
/// thread safety. Turns off HDF5's printing of errors.
[[nodiscard]] std::unique_lock<Hdf5Mutex> hdf5_lock(Hdf5Turn turn = Hdf5Turn::read);

/// Place of an HDF5 call, for error messages.
struct Hdf5Place {
  const std::filesystem::path& file;
  std::string_view object;  ///< Dataset or attribute; empty for the file itself.
  bool writing = false;     ///< Failures are EnvironmentErrors.
};

/// Returns `result` unless negative. Then throws EnvironmentError if `place.writing` or a system
/// call failed (EIO, ESTALE, EMFILE, …), else DataError, with place, `action` ("open", "write") and
/// HDF5's innermost reason. Requires: the lock is held.
std::int64_t hdf5_check(std::int64_t result, const Hdf5Place& place, std::string_view action);

/// Returns for example "1.10.8".
[[nodiscard]] std::string hdf5_library_version();

}  // namespace jforge
