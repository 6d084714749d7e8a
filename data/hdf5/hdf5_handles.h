#pragma once

/// Move-only handles over HDF5 identifiers, and the one lock around the library. HDF5's own headers
/// stay inside data/hdf5/*.cpp: an identifier is passed as the 64-bit integer that it is.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace jforge {

/// What an HDF5 identifier names, and so which call closes it.
enum class Hdf5Kind : std::uint8_t { file, dataset, dataspace, datatype, attribute, property_list };

/// Owns one HDF5 identifier. Closing takes the lock and never throws.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  /// Takes over `id`, which must be valid (check with hdf5_check).
  Hdf5Handle(Hdf5Kind kind, std::int64_t id) : kind_(kind), id_(id) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept;
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  ~Hdf5Handle() { close(); }

  [[nodiscard]] std::int64_t id() const noexcept { return id_; }
  [[nodiscard]] bool valid() const noexcept { return id_ >= 0; }
  /// Closes now. Returns false when HDF5 reports a failure (a flush that found the disk full).
  bool close() noexcept;

 private:
  Hdf5Kind kind_ = Hdf5Kind::file;
  std::int64_t id_ = -1;
};

/// Recursive lock whose writers give way to waiting readers: a checkpoint that is written slice by
/// slice in the background delays a training step's read by one slice at most.
class Hdf5Mutex {
 public:
  /// For a reader.
  void lock() { acquire(false); }
  void lock_after_readers() { acquire(true); }
  void unlock();
  /// Readers that wait now.
  [[nodiscard]] int readers_waiting();

 private:
  void acquire(bool gives_way);

  std::mutex mutex_;
  std::condition_variable freed_;
  std::thread::id owner_;
  int depth_ = 0;  ///< Of owner_'s locks; 0: free.
  int readers_waiting_ = 0;
};

enum class Hdf5Turn : std::uint8_t { read, write };

/// Takes the process-wide lock under which every HDF5 call is made (the library is built without
/// thread safety); the first call also turns off HDF5's printing of errors. Recursive.
[[nodiscard]] std::unique_lock<Hdf5Mutex> hdf5_lock(Hdf5Turn turn = Hdf5Turn::read);

/// Where an HDF5 call was made, for its error message.
struct Hdf5Place {
  const std::filesystem::path& file;
  std::string_view object;  ///< Dataset or attribute; empty for the file itself.
  bool writing = false;     ///< Failures are EnvironmentError when writing; reading see hdf5_check.
};

/// Returns `result` unless it is negative, HDF5's sign of failure: then throws EnvironmentError
/// where writing, or a system call (EIO, ESTALE, EMFILE, …), has failed, else DataError: with file,
/// object, `action` ("open", "write") and HDF5's innermost reason. Call with the lock held.
std::int64_t hdf5_check(std::int64_t result, const Hdf5Place& place, std::string_view action);

/// Of the loaded library, "1.10.8".
[[nodiscard]] std::string hdf5_library_version();

}  // namespace jforge
