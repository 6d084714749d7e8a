#include "workers/resume_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoints/checkpoint_writer.h"
#include "data/trajectories/trajectory_store.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/log.h"
#include "runtime/read_file.h"

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

void expect_never_trained(const RunLayout& layout) {
  std::vector<std::string> made;
  if (std::filesystem::exists(layout.export_record())) {
    const auto record = try_bounded_json(read_file(layout.export_record()));
    if (record.is_object() && record.value("rounds", nlohmann::json()) != "0") {
      made.push_back(layout.export_record().string());
    }
  }
  for (std::int32_t round = 2; !list_committed_shards(layout.trajectories(round)).empty();
       ++round) {
    made.push_back(layout.round(round).string());
  }
  if (!made.empty()) {
    throw lost_checkpoints(layout.checkpoints(), fmt::format("{}", fmt::join(made, ", ")),
                           "move what came from them away to train again");
  }
}

DataError lost_checkpoints(const std::filesystem::path& directory, const std::string& made,
                           const std::string& remedy) {
  return DataError(fmt::format(
      "{}: no checkpoint is left of those that {} came from, and training would begin anew; put "
      "them back, or {}",
      directory.string(), made, remedy));
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

void expect_same_samples(const Checkpoint& checkpoint, const Identity& present) {
  for (const auto& [key, before, now] :
       identity_differences(checkpoint.manifest.state.identity, present)) {
    if (key == "train.batch_samples" || key.starts_with("train.filter_")) {
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
  static const std::set<std::string> of_training = {"train.ar_loss",
                                                    "train.ar_weight",
                                                    "train.consistency_decay",
                                                    "train.consistency_weight",
                                                    "train.kept",
                                                    "train.reduction",
                                                    "train.spike_guard_measure",
                                                    "train.teacher",
                                                    "train.train_prompt"};
  const std::string of_round = fmt::format("rounds.{}.", round);
  const auto changes_the_loss = [&](const std::string& key) {
    return of_training.contains(key) ||
           (key.starts_with(of_round) && !key.ends_with(".steps") && !key.ends_with(".epochs") &&
            !key.ends_with(".learning_rate"));
  };
  for (const IdentityDifference& difference : identity_differences(recorded, present)) {
    if (changes_the_loss(difference.key) && !guard.recent.empty()) {
      guard.recent.clear();
      guard.in_a_row = 0;
      spdlog::info("{} has changed: the spike guard's window is filled anew", difference.key);
    }
  }
}

}  // namespace jforge
