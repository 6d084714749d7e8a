#pragma once

/// One run directory, one owner (tests/FAULTS.md row 17): a lock file made with O_EXCL names
/// holder, host, process and job and holds a counter that a thread refreshes. It is stale when a
/// waiter sees no change for `stale_seconds` by its own monotonic clock. A holder that was
/// suspended for so long finds the other's name in the file when it wakes, and gives up.

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace jforge {

class RunLock {
 public:
  struct Timing {
    double refresh_seconds = 5;
    double stale_seconds = 60;
  };
  /// Called once, by the refreshing thread, when the lock is no longer ours; gets who has it now.
  using OnLost = std::function<void(const std::string& reason)>;
  /// Takes `directory`/lock or throws EnvironmentError naming the holder. A lock held by a dead
  /// process of this machine and process-id namespace is taken over at once; any other after
  /// stale_seconds without change. Default of `on_lost`: log it and end the job with exit code 4,
  /// since two jobs that write into one run directory would spoil it.
  RunLock(const std::filesystem::path& directory, Timing timing, OnLost on_lost = {});
  explicit RunLock(const std::filesystem::path& directory) : RunLock(directory, Timing{}) {}
  /// Releases the lock (removes the file) if it is still ours.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  void refresh_loop();
  void write(bool create);
  /// Who has taken the lock from us; empty while it is ours or cannot be read.
  [[nodiscard]] std::string lost_to();

  std::filesystem::path path_;
  Timing timing_;
  OnLost on_lost_;
  int absences_ = 0;  ///< Refreshes in a row that found no lock file.
  std::string identity_;
  std::string job_;  ///< Read once: its thread must not look while another sets a variable.
  std::uint64_t counter_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

/// What somebody who only looks can tell of `directory`/lock: why no job can hold it (it is gone,
/// or its holder is a dead process of this machine), or that it was not refreshed for longer than
/// stale_seconds by this host's clock. Empty: a job holds it. Takes nothing over.
[[nodiscard]] std::string why_lock_is_dead(const std::filesystem::path& directory);

}  // namespace jforge
