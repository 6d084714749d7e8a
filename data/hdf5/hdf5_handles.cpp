#include "data/hdf5/hdf5_handles.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/error.h"
#include "runtime/read_file.h"

namespace jforge {

static_assert(sizeof(hid_t) == sizeof(std::int64_t), "HDF5 1.10 or later has 64-bit identifiers");

namespace {

herr_t close_identifier(Hdf5Kind kind, hid_t id) {
  switch (kind) {
    case Hdf5Kind::file:
      return H5Fclose(id);
    case Hdf5Kind::dataset:
      return H5Dclose(id);
    case Hdf5Kind::dataspace:
      return H5Sclose(id);
    case Hdf5Kind::datatype:
      return H5Tclose(id);
    case Hdf5Kind::attribute:
      return H5Aclose(id);
    case Hdf5Kind::property_list:
      return H5Pclose(id);
  }
  return -1;
}

struct Failure {
  std::string reason = "HDF5 gives no reason";
  int error_number = 0;  ///< errno, or 0.
};

/// Keeps the innermost entry of the error stack, which is the cause.
herr_t keep_failure(unsigned position, const H5E_error2_t* entry, void* target) {
  if (entry->desc == nullptr) {
    return 0;
  }
  auto& failure = *static_cast<Failure*>(target);
  if (position == 0) {
    failure.reason = entry->desc;
    std::erase(failure.reason, '\n');  // Follows the time.
  }
  // The file driver reports errno only in its text.
  constexpr std::string_view kNumber = "errno = ";
  const std::string_view text = entry->desc;
  if (const auto at = text.find(kNumber); at != std::string_view::npos) {
    const std::string_view digits = text.substr(at + kNumber.size());
    std::from_chars(digits.data(), digits.data() + digits.size(), failure.error_number);
  }
  return 0;
}

/// Returns true for errors that offsets in a damaged file cause.
bool is_files_fault(int error_number) {
  return error_number == 0 || error_number == EINVAL || error_number == EOVERFLOW ||
         error_number == EFBIG;
}

}  // namespace

Hdf5Handle::Hdf5Handle(Hdf5Handle&& other) noexcept
    : kind_(other.kind_), id_(std::exchange(other.id_, -1)) {}

Hdf5Handle& Hdf5Handle::operator=(Hdf5Handle&& other) noexcept {
  if (this != &other) {
    close();
    kind_ = other.kind_;
    id_ = std::exchange(other.id_, -1);
  }
  return *this;
}

bool Hdf5Handle::close() noexcept {
  if (id_ < 0) {
    return true;
  }
  const auto lock = hdf5_lock();
  return close_identifier(kind_, std::exchange(id_, -1)) >= 0;
}

void Hdf5Mutex::acquire(bool gives_way) {
  std::unique_lock guard(mutex_);
  if (depth_ > 0 && owner_ == std::this_thread::get_id()) {
    ++depth_;
    return;
  }
  readers_waiting_ += gives_way ? 0 : 1;
  freed_.wait(guard, [&] { return depth_ == 0 && (!gives_way || readers_waiting_ == 0); });
  readers_waiting_ -= gives_way ? 0 : 1;
  owner_ = std::this_thread::get_id();
  depth_ = 1;
}

void Hdf5Mutex::unlock() {
  const std::scoped_lock guard(mutex_);
  if (--depth_ == 0) {
    freed_.notify_all();
  }
}

int Hdf5Mutex::readers_waiting() {
  const std::scoped_lock guard(mutex_);
  return readers_waiting_;
}

std::unique_lock<Hdf5Mutex> hdf5_lock(Hdf5Turn turn) {
  static Hdf5Mutex& mutex = *new Hdf5Mutex;  // Leaked: handles may outlive statics.
  if (turn == Hdf5Turn::write) {
    mutex.lock_after_readers();
  } else {
    mutex.lock();
  }
  std::unique_lock lock(mutex, std::adopt_lock);
  // HDF5's clean-up at exit would crash after a failed close (disk full).
  static const bool no_clean_up_at_exit = H5dont_atexit() >= 0;
  // Keeps files from loading filter plug-ins.
  static const bool no_plugins = H5PLset_loading_state(0) >= 0;
  // A thread-safe HDF5 has an error stack per thread.
  thread_local const bool silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  static_cast<void>(no_clean_up_at_exit && no_plugins && silenced);
  return lock;
}

std::int64_t hdf5_check(std::int64_t result, const Hdf5Place& place, std::string_view action) {
  if (result >= 0) {
    return result;
  }
  Failure failure;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_failure, &failure);
  H5Eclear2(H5E_DEFAULT);
  const std::string object = place.object.empty() ? "" : fmt::format(", '{}'", place.object);
  const std::string message =
      fmt::format("{}{}: cannot {}: {}", place.file.string(), object, action, failure.reason);
  if (place.writing ||
      (is_systems_fault(failure.error_number) && !is_files_fault(failure.error_number))) {
    throw EnvironmentError(message);
  }
  throw DataError(message);
}

std::string hdf5_library_version() {
  const auto lock = hdf5_lock();
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace jforge
