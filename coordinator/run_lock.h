#pragma once

/// Gives a run directory one owner (tests/FAULTS.md row 17). The lock file, created with O_EXCL,
/// names host, process and job and holds a counter that a thread refreshes. It is stale after
/// `stale_seconds` without a change, by the waiter's monotonic clock. A holder that was suspended
/// that long finds another's name in the file and gives up.

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace jforge {

class RunLock {
 public:
  struct Timing {
    double refresh_seconds = 5;
    double stale_seconds = 60;
  };
  /// Called once by the refreshing thread when the lock is lost; gets the new holder.
  using OnLost = std::function<void(const std::string& reason)>;
  /// Takes `directory`/lock or throws EnvironmentError naming the holder. Takes over at once from a
  /// dead process of this machine and process-id namespace and from an earlier start of the same
  /// Slurm job, from others when stale. By default `on_lost` logs and ends the job with exit code
  /// 4, because two jobs would corrupt the run directory.
  RunLock(const std::filesystem::path& directory, Timing timing, OnLost on_lost = {});
  explicit RunLock(const std::filesystem::path& directory) : RunLock(directory, Timing{}) {}
  /// Removes the lock file if it is still ours.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  void refresh_loop();
  void write(bool create);
  /// Describes the lock's new holder; empty if it is ours or unreadable.
  [[nodiscard]] std::string lost_to();

  std::filesystem::path path_;
  Timing timing_;
  OnLost on_lost_;
  int absences_ = 0;  ///< Consecutive refreshes without a lock file.
  std::string identity_;
  // Cached: getenv is unsafe while another thread sets a variable.
  std::string job_;
  std::string restart_;
  std::uint64_t counter_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

/// Returns why no job can hold `directory`/lock (missing, holder dead on this machine, or not
/// refreshed for stale_seconds by this host's clock); empty if a job holds it. Takes nothing over.
[[nodiscard]] std::string why_lock_is_dead(const std::filesystem::path& directory);

/// Returns "K-of-N"; empty for 1 of 1.
[[nodiscard]] std::string part_name(std::pair<int, int> part);
/// Makes and locks `parts`/`part`, or `whole` if `part` is empty. Throws EnvironmentError if
/// another job holds that lock, or one that excludes it: of the whole beside a part, of any part
/// beside the whole, of a part of another division.
[[nodiscard]] std::unique_ptr<RunLock> lock_part(const std::filesystem::path& whole,
                                                 const std::filesystem::path& parts,
                                                 const std::string& part);

}  // namespace jforge
