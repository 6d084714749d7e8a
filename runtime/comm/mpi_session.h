#pragma once

/// MPI lifetime and communicators. Only runtime/comm sees MPI's headers.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/hang_watchdog.h"
#include "runtime/ids.h"

namespace jforge {

struct ReceivedMessage {
  Rank source = 0;
  int tag = 0;
  std::vector<std::byte> payload;
};

/// A duplicated communicator. close() is collective and belongs to the normal path; destruction
/// without it abandons the handle and never waits. Collectives: collectives.h.
class Communicator {
 public:
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  [[nodiscard]] Rank rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// Collective. For another purpose or thread.
  [[nodiscard]] Communicator duplicate() const { return split(0); }
  /// Collective. Returns a communicator of the ranks with the same `color` ≥ 0, in their order
  /// here.
  [[nodiscard]] Communicator split(int color) const;
  /// Collective.
  void barrier() const;
  /// Collective. Frees the handle.
  void close();

  /// Returns at once; close() waits for the receivers. For one thread at a time.
  void send(Rank destination, int tag, std::span<const std::byte> payload) const;
  /// Returns one waiting message from any rank, or nothing; never blocks (MPI_Improbe).
  [[nodiscard]] std::optional<ReceivedMessage> try_receive() const;

  /// For the implementation of collectives (transport_internal.h).
  struct Handle;
  [[nodiscard]] Handle& handle() const noexcept { return *handle_; }

 private:
  friend class MpiSession;
  friend class VirtualWorld;
  explicit Communicator(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

/// First object in main. Initialises MPI with MPI_THREAD_MULTIPLE; throws EnvironmentError if it is
/// not granted. A HangWatchdog watches the clock from before MPI starts until after it ends,
/// because a rank that never arrives leaves the others in calls without a time limit. With
/// OMP_WAIT_POLICY=passive on rank 0, ranks sleep while they wait.
class MpiSession {
 public:
  /// Throws ConfigError unless JFORGE_MPI_LIMIT_SECONDS, if set, is a number ≥ 1.
  MpiSession(int* argc, char*** argv);
  /// Does nothing without finalize(): the process is ending because of an error.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  [[nodiscard]] const Communicator& world() const noexcept { return *world_; }
  /// Clock of the main thread, which constructs the session. limit_seconds() is the default
  /// deadline until another is set; there is none between "start MPI" and the next phase.
  [[nodiscard]] PhaseClock& clock() const noexcept { return clock_; }
  /// Limit of MPI's start and of its end: JFORGE_MPI_LIMIT_SECONDS, or 600.
  [[nodiscard]] double limit_seconds() const noexcept { return limit_seconds_; }
  /// Collective: barrier, free, MPI_Finalize. Requires: all durable work is done.
  void finalize();
  /// Ends every rank at once with this exit code.
  [[noreturn]] static void abort(int exit_code);

 private:
  double limit_seconds_;
  mutable PhaseClock clock_;
  HangWatchdog watchdog_{clock_};
  std::optional<Communicator> world_;
};

/// Work before and without MPI. The first returns this process's rank if mpirun or srun started it,
/// else null: then few commands need MPI.
[[nodiscard]] const char* rank_from_a_launcher();
[[nodiscard]] std::string host_name();

}  // namespace jforge
