#include "workers/job_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoints/hf_model.h"
#include "data/prompts/prompt_store.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/log.h"
#include "workers/phases/evaluate_phase.h"
#include "workers/phases/round_training.h"
#include "workers/training_probe.h"

namespace jforge {

namespace {

/// Refuses accepted changes of rounds that are trained: they would change nothing, although the
/// run's records would say that they had.
void expect_trained_rounds(const Checkpoint& checkpoint, std::int32_t rounds_trained,
                           std::size_t rounds, const Identity& present) {
  const auto refuse = [&](const IdentityDifference& difference, const std::string& trained) {
    throw ConfigError(fmt::format(
        "{}: {} → {} comes too late, {} has {} trained; put it back (with --accept-change {} "
        "where an earlier start has recorded it), or --resume from a checkpoint of before",
        difference.key, difference.recorded, difference.present, checkpoint.directory.string(),
        trained, difference.key));
  };
  for (const IdentityDifference& difference :
       identity_differences(checkpoint.manifest.state.identity, present)) {
    if (difference.key.starts_with("train.") && std::cmp_equal(rounds_trained, rounds)) {
      refuse(difference, "all rounds");
    }
    for (std::int32_t round = 1; round <= rounds_trained; ++round) {
      if (difference.key.starts_with(fmt::format("rounds.{}.", round))) {
        refuse(difference, fmt::format("round {}", round));
      }
    }
  }
}

}  // namespace

JobWorker::JobWorker(const JobConfig& config, WorkerServices services, Identity identity,
                     AcceptedChanges accepted)
    : config_(config),
      services_(std::move(services)),
      identity_(std::move(identity)),
      accepted_(std::move(accepted)),
      layout_(config.run.directory),
      weights_(services_, config.model.source, identity_.at(kModelHash), layout_.checkpoints(),
               config.train.drafter_shape(), config.run.seed),
      import_(config, services_, layout_),
      generation_(config, services_, layout_, identity_, weights_),
      export_(config, services_, layout_, weights_) {}

void JobWorker::resume(const ResumeChoice& choice) {
  import_.check();
  import_.identify(identity_);
  CheckpointSearch search = find_checkpoint(services_.comm, layout_.checkpoints(), choice);
  if (search.newest) {
    weights_.resume(*std::move(search.newest));
  }
  const std::optional<Checkpoint>& resumed = weights_.resume_point();
  goes_back_ = choice.kind == ResumeChoice::Kind::path;
  // A damaged checkpoint has been logged; training repeats from the one before it.
  if (!goes_back_ && (!resumed || search.skipped.empty())) {
    together(services_.comm, [&] {
      if (services_.comm.rank() == 0) {
        expect_none_lost(layout_, weights_.trained());
      }
    });
  }
  if (!resumed) {
    return;
  }
  together(services_.comm, [&] { expect_identity_of(*resumed); });
  const CheckpointManifest& manifest = resumed->manifest;
  log_info("continuing from {} (round {}, step {} of {})", resumed->directory.filename().string(),
           manifest.state.round, manifest.state.step, total_steps_of(manifest));
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0 &&
        std::cmp_greater_equal(weights_.trained(), config_.rounds.size())) {
      export_.look();
    }
  }));
}

void JobWorker::expect_identity_of(const Checkpoint& checkpoint) {
  // A checkpoint implies a finished import, whose settings cannot change any more.
  std::erase_if(accepted_.keys, [&](const std::string& key) {
    return identity_.change_of(key).fixed_from == FixedFrom::import;
  });
  Identity present = identity_;
  if (const auto lost_digest = import_.expect_prompts_of(checkpoint, identity_)) {
    present[kPromptsDigest] = *lost_digest;
  }
  expect_same_identity(checkpoint.directory.string(), checkpoint.manifest.state.identity, present,
                       accepted_.keys, accepted_.earlier);
  expect_trained_rounds(checkpoint, weights_.trained(), config_.rounds.size(), present);
  if (!finishes_round(checkpoint.manifest)) {
    expect_same_samples(checkpoint, present);
  }
}

void JobWorker::accept_start() {
  if (goes_back_ && weights_.resume_point()) {
    leave_newer_checkpoints(services_.comm, layout_.checkpoints(), *weights_.resume_point(),
                            [&] { return made_by_later_rounds(layout_, weights_.trained()); });
  }
  goes_back_ = false;
}

void JobWorker::expect_rounds_possible() const {
  together(services_.comm, [&] {
    if (services_.comm.rank() != 0) {
      return;
    }
    const PromptStore prompts = PromptStore::open(layout_.prompts(), SealCheck::size);
    const std::int64_t longest = prompts.longest();
    const TransformerConfig model = read_hf_config(config_.model.source);
    if (config_.train.filter.task && !prompts.has_answers()) {
      throw ConfigError(fmt::format(
          "train.filter_task = \"{}\" keeps only answers that it finds right by the prompt's "
          "reference answer, and no prompt in {} has one in prompts.answer_field = \"{}\"; name "
          "the records' field and use another run.directory, or leave the filter out",
          *config_.train.filter.task, layout_.prompts().string(),
          config_.prompts.answer_field.value_or("")));
    }
    for (std::int32_t round = weights_.trained() + 1;
         std::cmp_less_equal(round, config_.rounds.size()); ++round) {
      const RoundSettings& settings = config_.rounds[static_cast<std::size_t>(round - 1)];
      static_cast<void>(config_.required_positions(settings, longest, model));
      static_cast<void>(config_.total_steps(round, prompts.size()));
      expect_probes_fit(config_, round, model);
    }
  });
}

DurableFacts JobWorker::facts() const {
  DurableFacts facts;
  facts.prompts_imported = std::filesystem::exists(layout_.prompts());
  facts.rounds_trained = weights_.trained();
  facts.round_generated = facts.rounds_trained;
  facts.exported = export_.done();
  const std::int32_t next = facts.rounds_trained + 1;
  if (facts.prompts_imported && std::cmp_less_equal(next, config_.rounds.size())) {
    facts.open = generation_.open_prompts(next);
    facts.round_generated = facts.open.prompts.empty() ? next : facts.rounds_trained;
  }
  return facts;
}

bool JobWorker::train(std::int32_t round) {
  services_.clock.enter("generation report");
  static_cast<void>(agree(services_.comm, false, [&] { generation_.ensure_report(round); }));
  MemoryAccount account("training");
  const TrainOutcome outcome =
      RoundTraining(config_, services_, layout_, identity_, weights_, round, account).run();
  weights_.drop_unfinished();
  services_.end_phase(account);
  return outcome == TrainOutcome::finished;
}

bool JobWorker::execute(const Command& command) {
  switch (command.kind) {
    case Command::Kind::import_prompts: {
      const bool imported = import_.run();
      import_.identify(identity_);
      return imported;
    }
    case Command::Kind::generate:
      weights_.begin_round(command.round);
      return generation_.run(command.round);
    case Command::Kind::train:
      weights_.begin_round(command.round);
      return train(command.round);
    case Command::Kind::export_model:
      return export_.run();
    case Command::Kind::evaluate:
      weights_.drop();  // The evaluation reads its model from files.
      return run_evaluate_phase(config_, services_, layout_, command.model);
    case Command::Kind::report:
    case Command::Kind::finish:
      break;
  }
  throw InternalError("command " + to_string(command) + " is not a worker's");
}

}  // namespace jforge
