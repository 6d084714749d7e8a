#include "workers/resume_choice.h"

#include <fmt/ranges.h>

#include "checkpoints/checkpoint_writer.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/log.h"

namespace jforge {

ResumeChoice parse_resume_choice(const std::string& text) {
  if (text == "auto") {
    return {ResumeChoice::Kind::automatic, {}};
  }
  if (text == "never") {
    return {ResumeChoice::Kind::never, {}};
  }
  return {ResumeChoice::Kind::path, text};
}

std::optional<Checkpoint> find_checkpoint(const Communicator& comm,
                                          const std::filesystem::path& directory,
                                          const ResumeChoice& choice) {
  switch (choice.kind) {
    case ResumeChoice::Kind::never:
      return std::nullopt;
    case ResumeChoice::Kind::path:
      return open_checkpoint(comm, choice.path);
    case ResumeChoice::Kind::automatic:
      break;
  }
  CheckpointSearch search = find_newest_checkpoint(comm, directory);
  for (const std::string& reason : search.skipped) {
    spdlog::warn("checkpoint skipped: {}", reason);
  }
  return std::move(search.newest);
}

void leave_newer_checkpoints(const Communicator& comm, const std::filesystem::path& directory,
                             const ResumeChoice& choice, const Checkpoint& resumed) {
  if (choice.kind != ResumeChoice::Kind::path) {
    return;
  }
  together(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    const CheckpointState& state = resumed.manifest.state;
    const auto names = abandon_checkpoints_after(directory, state.round, state.step);
    if (!names.empty()) {
      spdlog::warn("{}: newer checkpoints than the one named are not continued from: {}",
                   directory.string(), fmt::join(names, ", "));
    }
  });
}

}  // namespace jforge
