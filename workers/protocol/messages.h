#pragma once

/// What travels between a rank's control thread and the coordinator. Fixed little-endian encoding,
/// one message per MPI message; the decoder checks every length.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/ids.h"

namespace jforge {

/// A set of prompts given to one rank for one try.
struct Lease {
  LeaseId id = 0;
  std::int32_t attempt = 0;  ///< 0-based; raised each time the same prompts are given out again.
  std::vector<PromptId> prompts;

  bool operator==(const Lease&) const = default;
};

// ---- rank → coordinator
/// Sent once a second; answered with a HeartbeatReply.
struct Heartbeat {
  std::string phase;
  std::int64_t step = 0;
  std::uint64_t progress = 0;
  double age_seconds = 0;
  bool waiting = false;       ///< For other ranks; else it works.
  std::int64_t tokens = 0;    ///< Made in this phase so far, for displays: committed or not.
  std::int64_t forwards = 0;  ///< Forward passes spent on them.
  std::string host;
  std::int64_t process_id = 0;

  bool operator==(const Heartbeat&) const = default;
};
/// Asks for work in `round`. `stop_requested`: this rank was told to stop. `idle`: it has nothing
/// else to do, so that an answer to wait may come late: when it is another one, or a second later.
struct LeaseRequest {
  std::int32_t round = 0;
  bool stop_requested = false;
  bool idle = false;

  bool operator==(const LeaseRequest&) const = default;
};
/// The lease's shard is complete and durable under its temporary name: may it be renamed?
struct CommitRequest {
  LeaseId id = 0;
  std::int32_t attempt = 0;

  bool operator==(const CommitRequest&) const = default;
};
/// The shard is renamed: its prompts are done.
struct CommitDone {
  LeaseId id = 0;
  std::int32_t attempt = 0;
  std::int64_t tokens = 0;    ///< Answer tokens generated, for progress.
  std::int64_t forwards = 0;  ///< Forward passes spent on them.

  bool operator==(const CommitDone&) const = default;
};

// ---- coordinator → rank
enum class LeaseAnswer : std::uint8_t {
  granted = 0,
  wait = 1,     ///< Nothing free now, but leases of other ranks may come back.
  drained = 2,  ///< Every prompt is committed.
  stop = 3,     ///< A stop was requested: leave the phase.
};
struct LeaseReply {
  LeaseAnswer answer = LeaseAnswer::wait;
  Lease lease;  ///< Valid when granted.

  bool operator==(const LeaseReply&) const = default;
};
struct CommitReply {
  LeaseId id = 0;
  std::int32_t attempt = 0;
  bool granted = false;  ///< False: another attempt won; delete the temporary file.

  bool operator==(const CommitReply&) const = default;
};

/// The coordinator heard a heartbeat: it is alive, and this is who it is.
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
/// Both throw CommError for bytes that are not a message.
[[nodiscard]] RankMessage decode_rank_message(std::span<const std::byte> bytes);
[[nodiscard]] CoordinatorMessage decode_coordinator_message(std::span<const std::byte> bytes);

}  // namespace jforge
