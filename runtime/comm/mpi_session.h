#pragma once

/// MPI lifetime and communicators. MPI headers are seen only inside runtime/comm.

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

/// A message received by Communicator::try_receive.
struct ReceivedMessage {
  Rank source = 0;
  int tag = 0;
  std::vector<std::byte> payload;
};

/// A duplicated communicator. Move-only. `close()` is collective and belongs to the normal path;
/// destruction without it abandons the handle and never waits. Collectives are in collectives.h.
class Communicator {
 public:
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  [[nodiscard]] Rank rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// Collective. A communicator of its own for another purpose or thread.
  [[nodiscard]] Communicator duplicate() const;
  /// Collective.
  void barrier() const;
  /// Collective. Frees the handle.
  void close();

  /// Takes a message over and returns at once, whether or not its receiver takes it; close() waits
  /// for that. Thread: one user at a time per communicator.
  void send(Rank destination, int tag, std::span<const std::byte> payload) const;
  /// Takes one waiting message from anybody, or nothing; never blocks on an absent message
  /// (MPI_Improbe).
  [[nodiscard]] std::optional<ReceivedMessage> try_receive() const;

  /// Access for the implementation of the collectives (transport_internal.h).
  struct Handle;
  [[nodiscard]] Handle& handle() const noexcept { return *handle_; }

 private:
  friend class MpiSession;
  friend class VirtualWorld;
  explicit Communicator(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

/// First object in main. Initialises MPI with MPI_THREAD_MULTIPLE and throws EnvironmentError when
/// it is not granted. It watches the process's clock (HangWatchdog): from before MPI starts until
/// it has ended, since a rank that never gets there leaves the others waiting in calls without a
/// time limit. With OMP_WAIT_POLICY=passive (rank 0's) ranks sleep while they wait for others.
class MpiSession {
 public:
  /// Throws ConfigError for a JFORGE_MPI_LIMIT_SECONDS that is no number of at least 1.
  MpiSession(int* argc, char*** argv);
  /// Without finalize() the destructor does nothing: the process is ending because of an error.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  [[nodiscard]] const Communicator& world() const noexcept { return *world_; }
  /// What this process's main thread is doing, which constructs the session. The session itself
  /// enters "start MPI" and "end MPI"; limit_seconds() is the deadline of all phases until somebody
  /// sets another, but of none until somebody enters one.
  [[nodiscard]] PhaseClock& clock() const noexcept { return clock_; }
  /// How long MPI may take to start, and to end: JFORGE_MPI_LIMIT_SECONDS, or 600.
  [[nodiscard]] double limit_seconds() const noexcept { return limit_seconds_; }
  /// Collective: barrier, free, MPI_Finalize. All durable work must be done.
  void finalize();
  /// Ends every rank at once with this exit code. Does not return.
  [[noreturn]] static void abort(int exit_code);

 private:
  double limit_seconds_;
  mutable PhaseClock clock_;
  HangWatchdog watchdog_{clock_};
  std::optional<Communicator> world_;
};

/// Name of this host. Works before and without MPI.
[[nodiscard]] std::string host_name();

}  // namespace jforge
