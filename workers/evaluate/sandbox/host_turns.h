#pragma once

/// Turns to run a program, over all processes of a job on one machine.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "workers/evaluate/sandbox/sandbox_process.h"

namespace jforge {

/// A turn; it ends with the object.
class HostTurn {
 public:
  HostTurn(HostTurn&&) noexcept = default;
  HostTurn& operator=(HostTurn&&) noexcept = default;
  ~HostTurn();

 private:
  friend class HostTurns;
  explicit HostTurn(OwnedDescriptor file) : file_(std::move(file)) {}
  OwnedDescriptor file_;
};

/// Locks on parts of one file: at most `slots` turns at a time, or one that has the machine to
/// itself. Locks end with their process, so nobody waits for a dead one. Who comes later waits
/// behind a turn that wants to be alone, which therefore waits no longer than the programs that are
/// running. Thread-safe.
class HostTurns {
 public:
  /// Opens `path`, makes it where it is missing. The file may be removed once every process has
  /// opened it. `slots` >= 1, the same in all processes. EnvironmentError when that fails.
  HostTurns(const std::filesystem::path& path, int slots);

  /// Waits for a turn, an `alone` one if asked for, and nothing when `give_up`, which is asked
  /// every few milliseconds while there is none, says so. EnvironmentError when the system gives no
  /// locks.
  [[nodiscard]] std::optional<HostTurn> wait(bool alone,
                                             const std::function<bool()>& give_up) const;

 private:
  std::string name_;
  OwnedDescriptor file_;
  int slots_;
};

}  // namespace jforge
