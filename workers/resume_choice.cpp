#include "workers/resume_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "checkpoints/checkpoint_writer.h"
#include "data/trajectories/trajectory_store.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/log.h"
#include "runtime/text_seal.h"
#include "workers/phases/round_weights.h"

namespace jforge {

namespace {

/// Returns the rounds of the exported model; 0 if there is none or export.json is damaged.
std::int64_t exported_rounds(const RunLayout& layout) {
  if (!std::filesystem::exists(layout.export_record())) {
    return 0;
  }
  try {
    const auto record = try_bounded_json(verify_sealed(layout.export_record()));
    const std::string rounds = record.is_object() ? record.value("rounds", std::string()) : "";
    std::int64_t exported = 0;
    std::from_chars(rounds.data(), rounds.data() + rounds.size(), exported);
    return exported;
  } catch (const DataError&) {
    return 0;
  }
}

}  // namespace

ResumeChoice parse_resume_choice(const std::string& text) {
  if (text == "auto") {
    return {ResumeChoice::Kind::automatic, {}};
  }
  if (text == "never") {
    return {ResumeChoice::Kind::never, {}};
  }
  return {ResumeChoice::Kind::path, text};
}

CheckpointSearch find_checkpoint(const Communicator& comm, const std::filesystem::path& directory,
                                 const ResumeChoice& choice) {
  switch (choice.kind) {
    case ResumeChoice::Kind::never:
      return {};
    case ResumeChoice::Kind::path: {
      Checkpoint named = open_checkpoint(comm, choice.path);
      together(comm, [&] {
        // Its own name may be a link.
        const auto path = std::filesystem::absolute(named.directory / ".").lexically_normal();
        const auto parent = std::filesystem::weakly_canonical(path.parent_path().parent_path());
        if (parent != std::filesystem::weakly_canonical(directory)) {
          throw ConfigError(fmt::format(
              "--resume {0}: that is no checkpoint of this run, and the next start would not find "
              "it; copy it first: mkdir -p {1} && cp -r {0} {1}/",
              choice.path.string(), directory.string()));
        }
      });
      return {std::move(named), {}};
    }
    case ResumeChoice::Kind::automatic:
      break;
  }
  CheckpointSearch search = find_newest_checkpoint(comm, directory);
  for (const std::string& reason : search.skipped) {
    log_warn("checkpoint skipped: {}", reason);
  }
  return search;
}

std::int64_t rounds_behind_newest(const RunLayout& layout) {
  for (const CheckpointDirectory& directory : list_checkpoint_directories(layout.checkpoints())) {
    if (!std::filesystem::exists(directory.path / kManifestName)) {
      continue;
    }
    try {
      return directory.round - (finishes_round(read_manifest(directory.path)) ? 0 : 1);
    } catch (const DataError&) {
      return directory.round;
    }
  }
  return 0;
}

std::vector<std::filesystem::path> made_by_later_rounds(const RunLayout& layout,
                                                        std::int64_t rounds_trained) {
  std::vector<std::filesystem::path> made;
  if (exported_rounds(layout) > rounds_trained) {
    made.push_back(layout.export_record());
  }
  for (auto round = static_cast<std::int32_t>(rounds_trained) + 2;
       !list_committed_shards(layout.trajectories(round)).empty(); ++round) {
    made.push_back(layout.round(round));
  }
  return made;
}

void expect_none_lost(const RunLayout& layout, std::int64_t rounds_trained) {
  std::vector<std::string> made;
  for (const auto& path : made_by_later_rounds(layout, rounds_trained)) {
    made.push_back(path.string());
  }
  if (!made.empty()) {
    throw lost_checkpoints(layout.checkpoints(), fmt::format("{}", fmt::join(made, ", ")),
                           "move what came from them away to train again");
  }
}

DataError lost_checkpoints(const std::filesystem::path& directory, const std::string& made,
                           const std::string& remedy) {
  return DataError(fmt::format(
      "{}: no checkpoint is left of those that {} came from, and what they held would be trained "
      "again; put them back, or {}",
      directory.string(), made, remedy));
}

void leave_newer_checkpoints(const Communicator& comm, const std::filesystem::path& directory,
                             const Checkpoint& resumed,
                             const std::function<std::vector<std::filesystem::path>()>& made) {
  together(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    const CheckpointState& state = resumed.manifest.state;
    std::vector<std::string> names;
    for (const std::filesystem::path& path : made()) {
      names.push_back(abandon(path));
    }
    for (std::string& name : abandon_checkpoints_after(directory, state.round, state.step)) {
      names.push_back(std::move(name));
    }
    if (!names.empty()) {
      log_warn("{}: what is newer than the checkpoint named is set aside: {}", directory.string(),
               fmt::join(names, ", "));
    }
  });
}

void expect_same_samples(const Checkpoint& checkpoint, const Identity& present) {
  for (const auto& [key, before, now, change] :
       identity_differences(checkpoint.manifest.state.identity, present)) {
    if (change.fixed_from == FixedFrom::round) {
      throw ConfigError(fmt::format(
          "{}: {} → {} would leave samples out and train others again, as {} is in the midst of "
          "them; put it back (with --accept-change {} where an earlier start has recorded it), or "
          "--resume from a checkpoint of before",
          key, before, now, checkpoint.directory.string(), key));
    }
  }
}

void forget_other_losses(SpikeGuardState& guard, const Identity& recorded, const Identity& present,
                         std::int32_t round) {
  const std::string of_round = fmt::format("rounds.{}.", round);
  for (const IdentityDifference& difference : identity_differences(recorded, present)) {
    const std::string& key = difference.key;
    const bool concerns_round = !key.starts_with("rounds.") || key.starts_with(of_round);
    if (difference.change.other_loss && concerns_round && !guard.recent.empty()) {
      guard.recent.clear();
      guard.in_a_row = 0;
      log_info("{} has changed: the spike guard's window is filled anew", key);
    }
  }
}

}  // namespace jforge
