#pragma once

/// Messages between control threads and coordinator: little-endian, one per MPI message, every
/// length checked.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// MPI tag of all of them.
inline constexpr int kControlTag = 1;

/// Prompts assigned to one rank for one attempt.
struct Lease {
  LeaseId id = 0;
  std::int32_t attempt = 0;  ///< 0-based; raised when the prompts are leased again.
  std::vector<PromptId> prompts;

  bool operator==(const Lease&) const = default;
};

// ---- rank → coordinator
/// Sent every second.
struct Heartbeat {
  std::string phase;
  std::int64_t step = 0;
  std::uint64_t progress = 0;
  double age_seconds = 0;
  bool waiting = false;     ///< For other ranks.
  std::int64_t tokens = 0;  ///< In this phase, committed or not; display only.
  std::int64_t forwards = 0;
  std::string host;
  std::int64_t process_id = 0;

  bool operator==(const Heartbeat&) const = default;
};
/// `stop_requested`: this rank was told to stop. `idle`: this rank has nothing else to do, so a
/// `wait` answer may come up to a second later.
struct LeaseRequest {
  std::int32_t round = 0;
  bool stop_requested = false;
  bool idle = false;

  bool operator==(const LeaseRequest&) const = default;
};
/// These prompts of a lease, perhaps not all, are finished; may this attempt commit them?
struct CommitRequest {
  Lease lease;

  bool operator==(const CommitRequest&) const = default;
};
/// The shard has its final name.
struct CommitDone {
  LeaseId id = 0;
  std::int32_t attempt = 0;
  std::int64_t tokens = 0;  ///< Answer tokens.
  std::int64_t forwards = 0;

  bool operator==(const CommitDone&) const = default;
};

// ---- coordinator → rank
enum class LeaseAnswer : std::uint8_t {
  granted = 0,
  wait = 1,     ///< Nothing is free, but another rank's lease may expire.
  drained = 2,  ///< Every prompt is committed.
  stop = 3,     ///< Start no prompt, commit what is finished, leave the phase.
};
struct LeaseReply {
  LeaseAnswer answer = LeaseAnswer::wait;
  Lease lease;  ///< Valid if granted.

  bool operator==(const LeaseReply&) const = default;
};
/// Prompts to commit as one shard, under a new id if they are part of a lease. Without those that
/// another attempt commits; empty if it commits all.
struct CommitReply {
  Lease lease;

  bool operator==(const CommitReply&) const = default;
};

/// Acknowledges a heartbeat.
struct HeartbeatReply {
  std::string host;
  std::int64_t process_id = 0;
  std::uint64_t job_progress = 0;  ///< Sum of all ranks' Heartbeat::progress.
  bool stop = false;               ///< The job stops; the rank sets its own stop flag.

  bool operator==(const HeartbeatReply&) const = default;
};

using RankMessage = std::variant<Heartbeat, LeaseRequest, CommitRequest, CommitDone>;
using CoordinatorMessage = std::variant<LeaseReply, CommitReply, HeartbeatReply>;

[[nodiscard]] std::vector<std::byte> encode(const RankMessage& message);
[[nodiscard]] std::vector<std::byte> encode(const CoordinatorMessage& message);
/// Both throw CommError for malformed bytes.
[[nodiscard]] RankMessage decode_rank_message(std::span<const std::byte> bytes);
[[nodiscard]] CoordinatorMessage decode_coordinator_message(std::span<const std::byte> bytes);

}  // namespace jforge
