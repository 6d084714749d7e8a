#pragma once

/// One interpreter in its sandbox, from start to end.

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

/// An owned file descriptor.
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

/// What all runs have in common.
struct SandboxSetup {
  bool bubblewrap = false;  ///< Else our own namespaces.
  std::filesystem::path bubblewrap_program;
  std::filesystem::path interpreter;
  std::vector<std::string> interpreter_options;
  std::int64_t work_bytes = 0;
  std::int64_t value_bytes = 0;
  NamespacePlan plan;
  std::vector<sock_filter> filter;
  OwnedDescriptor init;             ///< A file that holds sandbox_init_image().
  std::function<bool()> cancelled;  ///< See SandboxOptions.
  std::function<void()> waiting;    ///< See SandboxOptions.
};

/// What one run asks for.
struct ProcessSettings {
  std::int64_t memory_bytes = 0;
  std::int64_t cpu_seconds = 0;
  std::int64_t wall_seconds =
      0;  ///< Kept inside, for when this process cannot keep its own limits.
  std::uint32_t hash_seed = 0;
};

/// How a process ended.
struct ProcessEnd {
  int exit_code = -1;  ///< -1 when a signal ended it.
  int signal = 0;
  bool cpu_limit = false;  ///< It had used up its processor time.
};

class SandboxProcess {
 public:
  /// Starts the interpreter with the harness. EnvironmentError when no process can be started.
  SandboxProcess(const SandboxSetup& setup, const ProcessSettings& settings,
                 const std::string& entry_point);
  SandboxProcess(const SandboxProcess&) = delete;
  SandboxProcess& operator=(const SandboxProcess&) = delete;
  /// Kills it, and returns when nothing of it is left.
  ~SandboxProcess();

  [[nodiscard]] int command() const { return command_.get(); }  ///< Non-blocking.
  [[nodiscard]] int reply() const { return reply_.get(); }      ///< Non-blocking.
  /// What the start said on standard error so far, in one line.
  [[nodiscard]] std::string start_message();
  /// The harness is there: its standard error is no longer of interest, and if memory runs out it
  /// is to be the first to go. EnvironmentError when its process cannot be found.
  void started();
  /// How long its main thread has been ready to run and had no processor: others' load, not its own
  /// doing. Zero where the kernel keeps no such account. A wait that is not over yet is not in it.
  [[nodiscard]] std::chrono::nanoseconds time_kept_waiting();
  /// Whether the process has one thread, as seen from outside.
  [[nodiscard]] bool has_one_thread() const;
  /// How it ended, if it does so within `patience`.
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
  OwnedDescriptor handle_;  ///< pidfd of the sandbox's first process, with which all others go.
  pid_t child_ = -1;        ///< Ours to wait for: that process or bubblewrap.
  pid_t init_ = -1;
  pid_t interpreter_ = -1;    ///< Its child; known once started.
  OwnedDescriptor schedule_;  ///< The interpreter's schedstat, once started.
  std::chrono::nanoseconds kept_waiting_{0};
};

}  // namespace jforge
