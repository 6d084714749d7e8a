#include "workers/job_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoints/hf_model.h"
#include "checkpoints/tokenizer_fit.h"
#include "data/batches/sample_order.h"
#include "data/prompts/prompt_encoder.h"
#include "data/prompts/prompt_store.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "data/trajectories/trajectory_reader.h"
#include "data/trajectories/trajectory_store.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/evaluator.h"
#include "workers/train/distillation_trainer.h"
#include "workers/train/peak_flops.h"
#include "workers/train/training_checkpoint.h"
#include "workers/train/trajectory_samples.h"
#include "workers/trajectory_identity.h"

namespace jforge {

namespace {

using Json = nlohmann::json;

constexpr const char* kRoundPhase = "train";
/// Cursor of a round's checkpoints: weights_origin of its trajectories.
constexpr const char* kGeneratedFrom = "generated_from";

std::int64_t total_steps_of(const CheckpointManifest& manifest) {
  const Json cursors = Json::parse(manifest.state.cursors, nullptr, false);
  if (!cursors.is_object() || !cursors.contains("total_steps")) {
    throw DataError("checkpoint of round " + std::to_string(manifest.state.round) +
                    " has no total_steps among its cursors: it was not made by a training round");
  }
  return cursors["total_steps"].get<std::int64_t>();
}

bool finishes_round(const CheckpointManifest& manifest) {
  return manifest.state.step == total_steps_of(manifest);
}

}  // namespace

JobWorker::JobWorker(const JobConfig& config, WorkerServices services, Identity identity,
                     Accepted accepted)
    : config_(config),
      services_(std::move(services)),
      identity_(std::move(identity)),
      accepted_(std::move(accepted)),
      layout_(config.run.directory) {}

JobWorker::~JobWorker() = default;

void JobWorker::expect_returned(const MemoryAccount& account) {
  expect(account.live_bytes() == 0,
         account.name() + " left " + std::to_string(account.live_bytes()) + " bytes behind");
  spdlog::debug("{} peaked at {:.1f} MB", account.name(),
                static_cast<double>(account.peak_bytes()) / 1e6);
}

PromptImportConfig JobWorker::import_config() const {
  PromptImportConfig prompts = config_.prompts;
  prompts.seed = config_.run.seed;
  return prompts;
}

PromptEncoder JobWorker::prompt_encoder() const {
  return make_prompt_encoder(
      BytePairTokenizer::load(config_.model.source),
      ChatTemplate::load(config_.model.source, config_.prompts.chat_template == "chatml"),
      config_.prompts.system);
}

void JobWorker::check_prompts() const {
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() != 0 || !std::filesystem::exists(layout_.prompts())) {
      return;
    }
    const PromptStore store = PromptStore::open(layout_.prompts(), SealCheck::size);
    const std::string expected = import_identity(import_config(), prompt_encoder());
    if (store.identity() != expected) {
      throw ConfigError(fmt::format(
          "{} was imported with other settings or another chat template (import identity {}, this "
          "configuration and model have {}); use another run.directory",
          layout_.prompts().string(), store.identity(), expected));
    }
    if (!std::filesystem::exists(layout_.prompts_report())) {
      publish_file(layout_.prompts_report(), store.report() + "\n");
    }
  }));
}

void JobWorker::identify_prompts() {
  std::string digest;
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0 && std::filesystem::exists(layout_.prompts())) {
      digest = PromptStore::open(layout_.prompts(), SealCheck::size).digest();
    }
  }));
  digest = broadcast_text(services_.comm, digest, 0);
  if (!digest.empty()) {
    identity_["prompts.digest"] = digest;
  }
}

void JobWorker::resume(const ResumeChoice& choice) {
  check_prompts();
  identify_prompts();
  std::vector<std::string> skipped;
  if (choice.kind == ResumeChoice::Kind::never) {
    return;
  }
  if (choice.kind == ResumeChoice::Kind::path) {
    resume_point_ = open_checkpoint(services_.comm, choice.path);
  } else {
    CheckpointSearch search = find_newest_checkpoint(services_.comm, layout_.checkpoints());
    resume_point_ = std::move(search.newest);
    skipped = std::move(search.skipped);
  }
  for (const std::string& reason : skipped) {
    spdlog::warn("checkpoint skipped: {}", reason);
  }
  if (!resume_point_) {
    return;
  }
  const CheckpointManifest& manifest = resume_point_->manifest;
  // A checkpoint comes after the import: what that depends on cannot be accepted any more.
  std::erase_if(accepted_.keys, is_fixed_by_import);
  expect_same_identity(resume_point_->directory.string(), manifest.state.identity, identity_,
                       accepted_.keys, accepted_.earlier);
  rounds_trained_ =
      static_cast<std::int32_t>(manifest.state.round) - (finishes_round(manifest) ? 0 : 1);
  spdlog::info("continuing from {} (round {}, step {} of {})",
               resume_point_->directory.filename().string(), manifest.state.round,
               manifest.state.step, total_steps_of(manifest));
}

DurableFacts JobWorker::facts() const {
  DurableFacts facts;
  facts.prompts_imported = std::filesystem::exists(layout_.prompts());
  facts.rounds_trained = rounds_trained_;
  facts.round_generated = rounds_trained_;
  const std::int32_t next = rounds_trained_ + 1;
  if (facts.prompts_imported && next <= static_cast<std::int32_t>(config_.rounds.size()) &&
      open_prompts(next).prompts.empty()) {
    facts.round_generated = next;
  }
  if (next > static_cast<std::int32_t>(config_.rounds.size())) {
    const std::filesystem::path record = layout_.directory() / "export.json";
    facts.exported = std::filesystem::exists(layout_.model() / "config.json") &&
                     std::filesystem::exists(record) && read_file(record) == export_record();
  }
  return facts;
}

std::string JobWorker::export_record() const {
  const bool half = config_.model.export_as == ComputeType::bfloat16;
  return Json{{"rounds", rounds_trained_},
              {"export_as", half ? "bfloat16" : "float32"},
              {"weights", weights_origin(rounds_trained_)}}
             .dump() +
         "\n";
}

std::int64_t JobWorker::total_steps(std::int32_t round, std::int64_t num_prompts) const {
  const RoundSettings& settings = config_.rounds.at(static_cast<std::size_t>(round - 1));
  if (settings.steps) {
    return *settings.steps;
  }
  SampleOrderOptions order{config_.run.seed, static_cast<std::uint64_t>(round), num_prompts,
                           config_.train.batch_samples};
  return steps_for_epochs(order, settings.epochs.value_or(1));
}

std::vector<PromptId> JobWorker::prompts_of_round(std::int32_t round,
                                                  std::int64_t num_prompts) const {
  const SampleOrderOptions order{config_.run.seed, static_cast<std::uint64_t>(round), num_prompts,
                                 config_.train.batch_samples};
  return consumed_samples(order, total_steps(round, num_prompts));
}

bool JobWorker::resumes_at_end_of(std::int32_t round) const {
  return resume_point_ && resume_point_->manifest.state.round == round &&
         finishes_round(resume_point_->manifest);
}

bool JobWorker::resumes_within(std::int32_t round) const {
  return resume_point_ && resume_point_->manifest.state.round == round &&
         rounds_trained_ == round - 1;
}

std::string JobWorker::weights_origin(std::int32_t rounds_done) const {
  if (rounds_done == 0) {
    return identity_.at("model.hash");
  }
  if (resumes_within(rounds_done + 1)) {
    // The checkpoint itself may be gone by now: only the trajectories made from it are needed.
    const Json cursors = Json::parse(resume_point_->manifest.state.cursors, nullptr, false);
    if (cursors.is_object() && cursors.contains(kGeneratedFrom)) {
      return cursors[kGeneratedFrom].get<std::string>();
    }
  }
  return hash_hex(hash_file(final_checkpoint_directory(rounds_done) / kManifestName));
}

std::string JobWorker::trajectory_identity(std::int32_t round) const {
  return jforge::trajectory_identity(identity_, round, trajectory_origin_);
}

void JobWorker::set_stale_shards_aside(std::int32_t round) const {
  const std::string expected =
      jforge::trajectory_identity(identity_, round, weights_origin(round - 1));
  std::size_t stale = 0;
  for (const auto& [lease, path] : list_committed_shards(layout_.trajectories(round))) {
    try {
      if (TrajectoryReader(path, SealCheck::size).identity().identity == expected) {
        continue;
      }
    } catch (const DataError&) {
      continue;  // open_prompts() names it and sets it aside as damaged
    }
    std::filesystem::rename(path, path.string() + ".stale");
    ++stale;
  }
  if (stale > 0) {
    spdlog::warn(
        "{} shards of {} were generated by another configuration or model; they are set aside as "
        "*.stale and their prompts are generated again",
        stale, layout_.trajectories(round).string());
  }
}

OpenPrompts JobWorker::open_prompts(std::int32_t round) const {
  set_stale_shards_aside(round);
  const PromptStore prompts = PromptStore::open(layout_.prompts());
  const TrajectoryStore done = TrajectoryStore::open(layout_.trajectories(round));
  for (const DamagedShard& shard : done.damaged()) {
    spdlog::warn("{} does not hold and is set aside, its prompts are generated again: {}",
                 shard.path.string(), shard.reason);
    std::filesystem::rename(shard.path, shard.path.string() + ".damaged");
  }
  OpenPrompts open;
  open.next_lease = done.next_lease();
  for (const PromptId id : prompts_of_round(round, prompts.size())) {
    if (!done.contains(id)) {
      open.prompts.push_back({id, prompts.length(id)});
    }
  }
  return open;
}

ModelState& JobWorker::weights_after(std::int32_t rounds_done) {
  if (model_ && model_rounds_ == rounds_done) {
    return *model_;
  }
  if (!model_) {
    model_ =
        std::make_unique<ModelState>(config_.model.source, services_.comm.size(), weights_account_);
  }
  if (rounds_done == 0) {
    model_->load_hf(config_.model.source);
  } else if (resumes_at_end_of(rounds_done)) {
    model_->load_checkpoint(*resume_point_);
  } else {
    model_->load_checkpoint(open_checkpoint(final_checkpoint_directory(rounds_done)));
  }
  model_rounds_ = rounds_done;
  return *model_;
}

std::filesystem::path JobWorker::final_checkpoint_directory(std::int32_t round) const {
  if (resumes_at_end_of(round)) {
    return resume_point_->directory;
  }
  for (const CheckpointDirectory& candidate : list_checkpoint_directories(layout_.checkpoints())) {
    // Newest first: a round's last checkpoint is the first of its directories.
    if (candidate.round == round && std::filesystem::exists(candidate.path / kManifestName)) {
      if (finishes_round(read_manifest(candidate.path))) {
        return candidate.path;
      }
      break;
    }
  }
  throw DataError(
      fmt::format("the final checkpoint of round {} is gone from {}; it is needed to go on", round,
                  layout_.checkpoints().string()));
}

Checkpoint JobWorker::final_checkpoint(std::int32_t round) const {
  if (resumes_at_end_of(round)) {
    return *resume_point_;
  }
  std::string directory;
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0) {
      directory = final_checkpoint_directory(round).string();
    }
  }));
  return open_checkpoint(services_.comm, broadcast_text(services_.comm, directory, 0));
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

bool JobWorker::import_prompts() {
  services_.clock.enter("import", 0);
  bool stopped = false;
  together(services_.comm, [&] {
    if (services_.comm.rank() != 0) {
      return;
    }
    try {
      const ImportReport report = jforge::import_prompts(
          import_config(), prompt_encoder(), layout_.prompts(), [&](const ImportProgress& now) {
            if (services_.on_import) {
              services_.on_import(now);
            }
            if (stop_requested()) {
              throw Interrupted("the import was stopped; run again to start it anew");
            }
          });
      publish_file(layout_.prompts_report(), report.to_json() + "\n");
      spdlog::info("{} prompts read, {} kept, {} unreadable; {:.1f} MB at {:.1f} MB/s, {} tokens",
                   report.records, report.kept, report.unreadable.size(),
                   static_cast<double>(report.bytes) / 1e6,
                   static_cast<double>(report.bytes) / 1e6 / std::max(1e-9, report.seconds),
                   report.tokens);
    } catch (const Interrupted& interruption) {
      spdlog::warn("{}", interruption.what());
      stopped = true;
    }
  });
  identify_prompts();
  return !agree(services_.comm, stopped || stop_requested(), {});
}

bool JobWorker::train(std::int32_t round) {
  // Writing and committing may take as long as the disk likes; a rank that is gone is found by its
  // missing heartbeats.
  const std::string phase = "train round " + std::to_string(round);
  const auto on_disk = [&](const std::function<void()>& work) {
    services_.clock.enter("checkpoint", 0);
    work();
    services_.clock.enter(phase, config_.run.hang_limit_seconds);
  };
  services_.clock.enter("generation report", 0);
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0) {
      ensure_generation_report(round);
    }
  }));
  services_.clock.enter("load the weights", 0);
  MemoryAccount account("training");
  TrainOutcome outcome = TrainOutcome::interrupted;
  {
    const bool mid_round = resumes_within(round);
    static_cast<void>(agree(services_.comm, false, [&] {
      if (!mid_round) {
        weights_after(round - 1);
      } else if (!model_) {
        model_ = std::make_unique<ModelState>(config_.model.source, services_.comm.size(),
                                              weights_account_);
      }
    }));
    model_rounds_ =
        -1;  // until the round is through, the weights in memory belong to no round's end
    ModelState& model = *model_;
    const std::int64_t num_prompts = PromptStore::open(layout_.prompts()).size();
    const std::int64_t steps = total_steps(round, num_prompts);
    round_steps_ = steps;
    services_.clock.enter("open the trajectories", 0);  // rank 0 reads and checks every byte
    TrajectorySamples samples(layout_.trajectories(round),
                              {config_.run.seed, static_cast<std::uint64_t>(round), num_prompts,
                               config_.train.batch_samples},
                              steps, config_.noise_schedule(round), services_.comm);
    services_.clock.enter(phase, config_.run.hang_limit_seconds);
    const TrainContext context{model.config(), model.table(), services_.kernels, services_.comm,
                               account};
    DistillationTrainer trainer(context, model.weights(), config_.train_config(round));
    TrainPlan plan;
    plan.total_steps = steps;
    plan.checkpoint_every = config_.checkpoint.every_steps;
    plan.peak_flops = measure_peak_flops(services_.kernels, services_.comm);
    if (mid_round) {
      on_disk([&] {
        resume_training(services_.comm, *resume_point_, model.table(), trainer.optimizer());
      });
      plan.steps_done = resume_point_->manifest.state.step;
    } else if (config_.rounds[static_cast<std::size_t>(round - 1)].optimizer ==
               OptimizerStart::carry) {
      // From the file also when the state was in memory a phase ago: a restart between the rounds
      // must find the same.
      on_disk([&] {
        resume_training(services_.comm, final_checkpoint(round - 1), model.table(),
                        trainer.optimizer());
      });
    }
    CheckpointWriter writer(services_.comm, layout_.checkpoints(), config_.checkpoint, account);
    TrainHooks hooks;
    hooks.clock = &services_.clock;
    hooks.on_step = [&](const StepMetrics& metrics) {
      if (services_.on_step) {
        services_.on_step(round, metrics);
      }
    };
    hooks.at_boundary = [&] { on_disk([&] { writer.poll(); }); };
    hooks.save = [&](std::int64_t step) {
      const Json cursors = {{"total_steps", steps},
                            {"model_source", config_.model.source.string()},
                            {kGeneratedFrom, trajectory_origin_}};
      on_disk([&] {
        save_training(writer, {round, step, kRoundPhase, 0, identity_, cursors.dump()},
                      model.table(), trainer.optimizer());
      });
    };
    outcome = trainer.run(samples, plan, hooks);
    on_disk([&] { writer.finish(); });
    if (outcome == TrainOutcome::finished) {
      rounds_trained_ = round;
      model_rounds_ = round;
      resume_point_.reset();
    }
  }
  round_steps_ = 0;
  expect_returned(account);
  return outcome == TrainOutcome::finished;
}

bool JobWorker::export_final() {
  services_.clock.enter("export", 0);
  const bool stop = agree(services_.comm, stop_requested(), [&] {
    ModelState& model = weights_after(rounds_trained_);
    if (services_.comm.rank() == 0) {
      export_hf_model(
          config_.model.source, layout_.model(), model.config(), model.table(), model.weights(),
          config_.model.export_as == ComputeType::bfloat16 ? DType::bfloat16 : DType::float32);
      publish_file(layout_.directory() / "export.json", export_record());
    }
  });
  return !stop;
}

bool JobWorker::evaluate(const std::string& name) {
  // The evaluation reads its model from files; what the rounds left in memory is needed no more.
  model_.reset();
  model_rounds_ = -1;
  services_.clock.enter("evaluate " + name, config_.run.hang_limit_seconds);
  const std::filesystem::path directory = name == "base" ? config_.model.source : layout_.model();
  MemoryAccount account("evaluation");
  bool finished = false;
  {
    std::unique_ptr<ModelState> model;
    together(services_.comm, [&] {
      model = std::make_unique<ModelState>(directory, 1, account);
      model->load_hf(directory);
    });
    finished = evaluate_model(config_.evaluate,
                              {name, model->config(), model->table(), model->weights(), directory},
                              {services_.comm, services_.kernels, services_.clock, config_.run.seed,
                               config_.prompts.chat_template == "chatml", services_.on_evaluation},
                              layout_.evaluation());
  }
  expect_returned(account);
  return finished;
}

}  // namespace jforge
