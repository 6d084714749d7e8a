#pragma once

/// Which checkpoint a job continues from, and what may differ from it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/identity.h"
#include "runtime/comm/mpi_session.h"
#include "runtime/error.h"
#include "workers/run_layout.h"
#include "workers/train/spike_guard.h"

namespace jforge {

/// --resume
struct ResumeChoice {
  enum class Kind : std::uint8_t { automatic, never, path };
  Kind kind = Kind::automatic;
  std::filesystem::path path;
};

/// "auto", "never", or the path of a checkpoint.
[[nodiscard]] ResumeChoice parse_resume_choice(const std::string& text);

/// Changes of identity that a checkpoint may be older than.
struct AcceptedChanges {
  std::vector<std::string> keys;            ///< Given to this start.
  std::vector<IdentityDifference> earlier;  ///< Recorded in the run directory.
};

/// Collective. The checkpoint that `choice` means among those in `directory`: the newest that
/// holds, none, or the one named; those skipped are logged with the reason. Throws DataError when a
/// named one does not hold, ConfigError when it lies elsewhere: the next start would not find it.
[[nodiscard]] CheckpointSearch find_checkpoint(const Communicator& comm,
                                               const std::filesystem::path& directory,
                                               const ResumeChoice& choice);

/// Rounds that the newest checkpoint with a manifest has behind it; 0 without one. What is damaged
/// counts by its name.
[[nodiscard]] std::int64_t rounds_behind_newest(const RunLayout& layout);
/// What a run directory holds that came from the end of a later round than `rounds_trained`: the
/// record of an export, and folders of rounds that its model generated.
[[nodiscard]] std::vector<std::filesystem::path> made_by_later_rounds(const RunLayout& layout,
                                                                      std::int64_t rounds_trained);
/// Throws DataError where there is any: checkpoints are gone, and what they held would be trained
/// again without a word, and replace what came from them.
void expect_none_lost(const RunLayout& layout, std::int64_t rounds_trained);
/// The same error for `made`, which came from checkpoints of `directory`; `remedy` says how they
/// are done without all the same.
[[nodiscard]] DataError lost_checkpoints(const std::filesystem::path& directory,
                                         const std::string& made, const std::string& remedy);

/// Collective. Once nothing can refuse a start that goes on from a named checkpoint: newer ones in
/// `directory` are set aside (abandon_checkpoints_after), behind what came from them, which rank 0
/// asks `made` for. Throws EnvironmentError.
void leave_newer_checkpoints(const Communicator& comm, const std::filesystem::path& directory,
                             const Checkpoint& resumed,
                             const std::function<std::vector<std::filesystem::path>()>& made);

/// Throws ConfigError if `present` differs from the identity of `checkpoint`, which lies in the
/// middle of a round, in a key that is FixedFrom::round: samples would be left out or trained
/// again.
void expect_same_samples(const Checkpoint& checkpoint, const Identity& present);

/// Empties the window of `guard`, and logs it, if `recorded` and `present` differ in a key of round
/// `round` (0: there are no rounds) that changes the loss (KeyChange::other_loss).
void forget_other_losses(SpikeGuardState& guard, const Identity& recorded, const Identity& present,
                         std::int32_t round);

}  // namespace jforge
