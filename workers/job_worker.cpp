#include "workers/job_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoints/hf_model.h"
#include "data/prompts/prompt_store.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/log.h"
#include "runtime/tensor/cuda_memory.h"
#include "workers/round_checkpoint_internal.h"
#include "workers/training_probe.h"

namespace jforge {

namespace {

/// An accepted change of a round that is trained already would change nothing, and the run's
/// records would say that it had.
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
      layout_(config.run.directory) {}

JobWorker::~JobWorker() = default;

void JobWorker::end_phase(const MemoryAccount& account) {
  expect(account.live_bytes() == 0,
         account.name() + " left " + std::to_string(account.live_bytes()) + " bytes behind");
  spdlog::debug("{} peaked at {:.1f} MB", account.name(),
                static_cast<double>(account.peak_bytes()) / 1e6);
  services_.kernels.release_work_space();
  if (services_.kernels.device() != Device::cpu) {
    spdlog::info("{} took {:.1f} MB of the device at most", account.name(),
                 static_cast<double>(cuda_memory::peak()) / 1e6);
    cuda_memory::forget_peak();
  }
}

void JobWorker::resume(const ResumeChoice& choice) {
  check_prompts();
  identify_prompts();
  CheckpointSearch search = find_checkpoint(services_.comm, layout_.checkpoints(), choice);
  resume_point_ = std::move(search.newest);
  if (resume_point_) {
    const CheckpointManifest& found = resume_point_->manifest;
    rounds_trained_ =
        static_cast<std::int32_t>(found.state.round) - (finishes_round(found) ? 0 : 1);
  }
  goes_back_ = choice.kind == ResumeChoice::Kind::path;
  // What is damaged is trained again from the one before it, and has been named.
  if (!goes_back_ && (!resume_point_ || search.skipped.empty())) {
    together(services_.comm, [&] {
      if (services_.comm.rank() == 0) {
        expect_none_lost(layout_, rounds_trained_);
      }
    });
  }
  if (!resume_point_) {
    return;
  }
  const CheckpointManifest& manifest = resume_point_->manifest;
  // A checkpoint comes after the import: what that depends on cannot be accepted any more.
  std::erase_if(accepted_.keys, is_fixed_by_import);
  together(services_.comm, [&] {
    expect_prompts_of(manifest);
    Identity present = identity_;
    if (lost_prompts_digest_) {
      present[kPromptsDigest] = *lost_prompts_digest_;
    }
    expect_same_identity(resume_point_->directory.string(), manifest.state.identity, present,
                         accepted_.keys, accepted_.earlier);
    expect_trained_rounds(*resume_point_, rounds_trained_, config_.rounds.size(), present);
    if (!finishes_round(manifest)) {
      expect_same_samples(*resume_point_, present);
    }
  });
  spdlog::info("continuing from {} (round {}, step {} of {})",
               resume_point_->directory.filename().string(), manifest.state.round,
               manifest.state.step, total_steps_of(manifest));
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0 &&
        std::cmp_greater_equal(rounds_trained_, config_.rounds.size())) {
      exported_ = is_exported();
    }
  }));
}

void JobWorker::accept_start() {
  if (goes_back_ && resume_point_) {
    leave_newer_checkpoints(services_.comm, layout_.checkpoints(), *resume_point_,
                            [&] { return made_by_later_rounds(layout_, rounds_trained_); });
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
    for (std::int32_t round = rounds_trained_ + 1;
         std::cmp_less_equal(round, config_.rounds.size()); ++round) {
      const RoundSettings& settings = config_.rounds[static_cast<std::size_t>(round - 1)];
      if (config_.train.filter.min_tokens > config_.answer_tokens(settings)) {
        throw ConfigError(fmt::format(
            "train.filter_min_tokens = {} keeps no answer: those of round {} have at most {} "
            "tokens (generate.max_new_tokens); lower it",
            config_.train.filter.min_tokens, round, config_.answer_tokens(settings)));
      }
      static_cast<void>(config_.required_positions(settings, longest, model));
      static_cast<void>(total_steps(round, prompts.size()));
      expect_probes_fit(config_, round, model, prompts);
    }
  });
}

DurableFacts JobWorker::facts() const {
  DurableFacts facts;
  facts.prompts_imported = std::filesystem::exists(layout_.prompts());
  facts.rounds_trained = rounds_trained_;
  facts.round_generated = rounds_trained_;
  facts.exported = exported_;
  const std::int32_t next = rounds_trained_ + 1;
  if (facts.prompts_imported && std::cmp_less_equal(next, config_.rounds.size())) {
    facts.open = open_prompts(next);
    facts.round_generated = facts.open.prompts.empty() ? next : rounds_trained_;
  }
  return facts;
}

bool JobWorker::execute(const Command& command) {
  set_log_phase(to_string(command));
  if (command.kind == Command::Kind::generate || command.kind == Command::Kind::train) {
    static_cast<void>(agree(services_.comm, false, [&] {
      if (services_.comm.rank() == 0) {
        trajectory_origin_ = weights_origin(command.round - 1);
      }
    }));
    trajectory_origin_ = broadcast_text(services_.comm, trajectory_origin_, 0);
  }
  switch (command.kind) {
    case Command::Kind::import_prompts:
      return import_prompts();
    case Command::Kind::generate:
      return generate(command.round);
    case Command::Kind::train:
      return train(command.round);
    case Command::Kind::export_model:
      return export_final();
    case Command::Kind::evaluate:
      return evaluate(command.model);
    case Command::Kind::report:
    case Command::Kind::finish:
      break;
  }
  throw InternalError("command " + to_string(command) + " is not a worker's");
}

}  // namespace jforge
