#pragma once

#include <linux/filter.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "workers/evaluate/sandbox/process_start.h"

namespace jforge {

class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int number) : number_(number) {}
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~OwnedDescriptor() { reset(); }
  void reset();
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_ = -1;
};

struct SandboxSetup {
  bool bubblewrap = false;  ///< Otherwise our own namespaces.
  std::filesystem::path bubblewrap_program;
  std::filesystem::path interpreter;
  std::vector<std::string> interpreter_options;
  std::int64_t work_bytes = 0;
  std::int64_t value_bytes = 0;
  NamespacePlan plan;
  std::vector<sock_filter> filter;
  OwnedDescriptor init;  ///< File with sandbox_init_image().
  std::function<bool()> cancelled;
  std::function<void()> waiting;
};

struct ProcessSettings {
  std::int64_t memory_bytes = 0;
  std::int64_t cpu_seconds = 0;
  std::int64_t wall_seconds = 0;  ///< Enforced inside, in case this process hangs.
  std::uint32_t hash_seed = 0;
};

struct ProcessEnd {
  int exit_code = -1;  ///< -1 after a signal.
  int signal = 0;
  bool cpu_limit = false;
};

class SandboxProcess {
 public:
  /// Throws EnvironmentError.
  SandboxProcess(const SandboxSetup& setup, const ProcessSettings& settings,
                 const std::string& entry_point);
  SandboxProcess(const SandboxProcess&) = delete;
  SandboxProcess& operator=(const SandboxProcess&) = delete;
  /// Kills the sandbox and waits until nothing of it is left.
  ~SandboxProcess();

  [[nodiscard]] int command() const { return command_.get(); }  ///< Non-blocking.
  [[nodiscard]] int reply() const { return reply_.get(); }      ///< Non-blocking.
  /// Returns standard error so far, in one line.
  [[nodiscard]] std::string start_message();
  /// Call when the harness is ready: ignores standard error from now on and makes the process the
  /// first victim if memory runs out. Throws EnvironmentError if it cannot be found.
  void started();
  /// Returns how long its main thread was runnable without a CPU (completed waits); zero if
  /// unknown.
  [[nodiscard]] std::chrono::nanoseconds time_kept_waiting();
  /// Checked from outside.
  [[nodiscard]] bool has_one_thread() const;
  /// Returns nothing if it does not end within `patience`.
  [[nodiscard]] std::optional<ProcessEnd> wait(std::chrono::milliseconds patience);

 private:
  void find_init(OwnedDescriptor info, OwnedDescriptor block);
  void kill_and_reap() noexcept;
  [[nodiscard]] ProcessEnd reap() noexcept;

  bool bubblewrap_;
  std::int64_t cpu_seconds_;
  OwnedDescriptor command_;
  OwnedDescriptor reply_;
  OwnedDescriptor errors_;
  OwnedDescriptor handle_;  ///< pidfd of the first process; all others die with it.
  pid_t child_ = -1;        ///< To wait for: that process or bubblewrap.
  pid_t init_ = -1;
  pid_t interpreter_ = -1;    ///< Child of init_; set by started().
  OwnedDescriptor schedule_;  ///< Its schedstat; set by started().
  std::chrono::nanoseconds kept_waiting_{0};
};

}  // namespace jforge
