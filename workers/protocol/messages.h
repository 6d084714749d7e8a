#pragma once

/// Messages between a rank's control thread and the coordinator. Little-endian, one per MPI
/// message; the decoder checks every length.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// Prompts that are assigned to one rank for one attempt.
struct Lease {
  LeaseId id = 0;
  std::int32_t attempt = 0;  ///< 0-based; raised when the same prompts are leased again.
  std::vector<PromptId> prompts;

  bool operator==(const Lease&) const = default;
};

// ---- rank → coordinator
/// Sent every second; the coordinator answers with a HeartbeatReply.
struct Heartbeat {
  std::string phase;
  std::int64_t step = 0;
  std::uint64_t progress = 0;
  double age_seconds = 0;
  bool waiting = false;       ///< The worker waits for other ranks.
  std::int64_t tokens = 0;    ///< Generated in this phase, committed or not; display only.
  std::int64_t forwards = 0;  ///< Forward passes for these tokens.
  std::string host;
  std::int64_t process_id = 0;

  bool operator==(const Heartbeat&) const = default;
};
/// Asks for work in `round`. `stop_requested`: this rank was told to stop. `idle`: it has nothing
/// else to do, so the coordinator may delay a `wait` answer by up to a second.
struct LeaseRequest {
  std::int32_t round = 0;
  bool stop_requested = false;
  bool idle = false;

  bool operator==(const LeaseRequest&) const = default;
};
/// Asks whether the lease's shard, complete and durable under its temporary name, may be renamed.
struct CommitRequest {
  LeaseId id = 0;
  std::int32_t attempt = 0;

  bool operator==(const CommitRequest&) const = default;
};
/// Reports that the shard has been renamed: its prompts are done.
struct CommitDone {
  LeaseId id = 0;
  std::int32_t attempt = 0;
  std::int64_t tokens = 0;    ///< Answer tokens, for progress.
  std::int64_t forwards = 0;  ///< Forward passes for these tokens.

  bool operator==(const CommitDone&) const = default;
};

// ---- coordinator → rank
enum class LeaseAnswer : std::uint8_t {
  granted = 0,
  wait = 1,     ///< No lease is free now, but one of another rank may expire.
  drained = 2,  ///< Every prompt is committed.
  stop = 3,     ///< A stop was requested; leave the phase.
};
struct LeaseReply {
  LeaseAnswer answer = LeaseAnswer::wait;
  Lease lease;  ///< Valid if granted.

  bool operator==(const LeaseReply&) const = default;
};
struct CommitReply {
  LeaseId id = 0;
  std::int32_t attempt = 0;
  bool granted = false;  ///< False: another attempt won; delete the temporary file.

  bool operator==(const CommitReply&) const = default;
};

/// Acknowledges a heartbeat and identifies the coordinator.
struct HeartbeatReply {
  std::string host;
  std::int64_t process_id = 0;
  std::uint64_t job_progress = 0;  ///< Sum of all ranks' Heartbeat::progress.

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
