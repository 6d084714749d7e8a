#pragma once

/// Limits concurrent programs over all processes of a job on one machine.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "workers/evaluate/sandbox/sandbox_process.h"

namespace jforge {

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

/// Locks on bytes of one file: at most `slots` turns or one exclusive turn. The kernel releases
/// locks of dead processes. New turns queue after a waiting exclusive turn. Thread-safe.
class HostTurns {
 public:
  /// Opens or creates `path`, which may be removed once every process has opened it. `slots` >= 1,
  /// equal everywhere. Throws EnvironmentError.
  HostTurns(const std::filesystem::path& path, int slots);

  /// Waits for a turn, exclusive if `alone`; nothing once `give_up`, polled every few milliseconds,
  /// is true. Throws EnvironmentError if the system grants no locks.
  [[nodiscard]] std::optional<HostTurn> wait(bool alone,
                                             const std::function<bool()>& give_up) const;

 private:
  std::string name_;
  OwnedDescriptor file_;
  int slots_;
};

}  // namespace jforge
