#pragma once

/// Which checkpoint a job continues from, and what may differ from it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/identity.h"
#include "runtime/comm/mpi_session.h"

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
  std::vector<std::string> keys;            ///< Of this start.
  std::vector<IdentityDifference> earlier;  ///< Recorded in the run directory.
};

/// Collective. The checkpoint that `choice` means among those in `directory`: the newest that
/// holds, none, or the one named. Those skipped are logged with the reason. Throws DataError when a
/// named one does not hold.
[[nodiscard]] std::optional<Checkpoint> find_checkpoint(const Communicator& comm,
                                                        const std::filesystem::path& directory,
                                                        const ResumeChoice& choice);

/// Collective. To be called once `resumed`, found by `choice`, is known to fit: where it was named,
/// newer checkpoints in `directory` are set aside (abandon_checkpoints_after) and logged. Throws
/// EnvironmentError.
void leave_newer_checkpoints(const Communicator& comm, const std::filesystem::path& directory,
                             const ResumeChoice& choice, const Checkpoint& resumed);

}  // namespace jforge
