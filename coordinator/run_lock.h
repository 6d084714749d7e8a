#pragma once

/// One run directory, one owner (faults.md row 17): a lock file made with O_EXCL names holder,
/// host, process and job and holds a counter that a thread refreshes. It is stale when a waiter
/// sees no change for `stale_seconds` by its own monotonic clock.

#include <condition_variable>
#include <filesystem>
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
  /// Takes `directory`/lock or throws EnvironmentError naming the holder. A lock held by a dead
  /// process of this host is taken over at once; one of another host after stale_seconds without
  /// change.
  RunLock(const std::filesystem::path& directory, Timing timing);
  explicit RunLock(const std::filesystem::path& directory) : RunLock(directory, Timing{}) {}
  /// Releases the lock (removes the file) if it is still ours.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  void refresh_loop();
  void write(bool create);

  std::filesystem::path path_;
  Timing timing_;
  std::string identity_;
  std::uint64_t counter_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jforge
