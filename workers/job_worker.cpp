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
#include "data/trajectories/trajectory_store.h"
#include "data/trajectories/trajectory_writer.h"
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

namespace jforge {

namespace {

using Json = nlohmann::json;

constexpr const char* kRoundPhase = "train";

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

Json read_json_or_null(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  return Json::parse(read_file(path), nullptr, false);
}

}  // namespace

JobWorker::JobWorker(const JobConfig& config, WorkerServices services,
                     std::map<std::string, std::string> identity, std::vector<std::string> accepted)
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
  expect_same_identity(*resume_point_, identity_, accepted_);
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
  const Json exported = read_json_or_null(layout_.directory() / "export.json");
  facts.exported = exported.is_object() && exported.value("rounds", -1) == rounds_trained_ &&
                   std::filesystem::exists(layout_.model() / "config.json");
  const Json summary = read_json_or_null(layout_.evaluation() / "summary.json");
  if (summary.is_object() && summary.contains("complete")) {
    facts.models_evaluated = summary["complete"].get<std::vector<std::string>>();
  }
  return facts;
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

OpenPrompts JobWorker::open_prompts(std::int32_t round) const {
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
  } else if (resume_point_ && resume_point_->manifest.state.round == rounds_done &&
             finishes_round(resume_point_->manifest)) {
    model_->load_checkpoint(*resume_point_);
  } else {
    throw DataError(
        fmt::format("the final checkpoint of round {} is gone from {}; it is needed to go on",
                    rounds_done, layout_.checkpoints().string()));
  }
  model_rounds_ = rounds_done;
  return *model_;
}

Checkpoint JobWorker::final_checkpoint(std::int32_t round, std::int64_t num_prompts) const {
  if (resume_point_ && resume_point_->manifest.state.round == round &&
      finishes_round(resume_point_->manifest)) {
    return *resume_point_;
  }
  return open_checkpoint(
      services_.comm,
      layout_.checkpoints() / checkpoint_directory_name(round, total_steps(round, num_prompts)));
}

bool JobWorker::execute(const Command& command) {
  set_log_phase(to_string(command));
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
  const bool ignored = agree(services_.comm, false, [&] {
    if (services_.comm.rank() != 0) {
      return;
    }
    try {
      PromptImportConfig prompts = config_.prompts;
      prompts.seed = config_.run.seed;
      const PromptEncoder encoder = make_prompt_encoder(
          BytePairTokenizer::load(config_.model.source),
          ChatTemplate::load(config_.model.source, prompts.chat_template == "chatml"),
          prompts.system);
      const ImportReport report =
          jforge::import_prompts(prompts, encoder, layout_.prompts(), [&](const ImportProgress&) {
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
  (void)ignored;
  identify_prompts();
  return !agree(services_.comm, stopped || stop_requested(), {});
}

bool JobWorker::train(std::int32_t round) {
  services_.clock.enter("train round " + std::to_string(round), config_.run.hang_limit_seconds);
  MemoryAccount account("training");
  TrainOutcome outcome = TrainOutcome::interrupted;
  {
    const bool mid_round = resume_point_ && resume_point_->manifest.state.round == round &&
                           rounds_trained_ == round - 1;
    if (mid_round && !model_) {
      model_ = std::make_unique<ModelState>(config_.model.source, services_.comm.size(),
                                            weights_account_);
    } else if (!mid_round) {
      weights_after(round - 1);
    }
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
    services_.clock.enter("train round " + std::to_string(round), config_.run.hang_limit_seconds);
    const TrainContext context{model.config(), model.table(), services_.kernels, services_.comm,
                               account};
    DistillationTrainer trainer(context, model.weights(), config_.train_config(round));
    TrainPlan plan;
    plan.total_steps = steps;
    plan.checkpoint_every = config_.checkpoint.every_steps;
    plan.peak_flops = measure_peak_flops(services_.kernels, services_.comm);
    if (mid_round) {
      resume_training(services_.comm, *resume_point_, model.table(), trainer.optimizer());
      plan.steps_done = resume_point_->manifest.state.step;
    } else if (config_.rounds[static_cast<std::size_t>(round - 1)].optimizer ==
               OptimizerStart::carry) {
      // From the file also when the state was in memory a phase ago: a restart between the rounds
      // must find the same.
      resume_training(services_.comm, final_checkpoint(round - 1, num_prompts), model.table(),
                      trainer.optimizer());
    }
    CheckpointWriter writer(services_.comm, layout_.checkpoints(), config_.checkpoint, account);
    TrainHooks hooks;
    hooks.clock = &services_.clock;
    hooks.on_step = [&](const StepMetrics& metrics) {
      if (services_.on_step) {
        services_.on_step(round, metrics);
      }
    };
    hooks.at_boundary = [&] { writer.poll(); };
    hooks.save = [&](std::int64_t step) {
      const Json cursors = {{"total_steps", steps},
                            {"model_source", config_.model.source.string()}};
      save_training(writer, {round, step, kRoundPhase, 0, identity_, cursors.dump()}, model.table(),
                    trainer.optimizer());
    };
    outcome = trainer.run(samples, plan, hooks);
    services_.clock.enter("checkpoint", config_.run.hang_limit_seconds);
    writer.finish();
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
      publish_file(layout_.directory() / "export.json",
                   Json{{"rounds", rounds_trained_}}.dump() + "\n");
    }
  });
  return !stop;
}

bool JobWorker::evaluate(const std::string& name) {
  services_.clock.enter("evaluate " + name, config_.run.hang_limit_seconds);
  const std::filesystem::path directory = name == "base" ? config_.model.source : layout_.model();
  MemoryAccount account("evaluation");
  bool finished = false;
  {
    std::unique_ptr<ModelState> model;
    const bool ignored = agree(services_.comm, false, [&] {
      model = std::make_unique<ModelState>(directory, 1, account);
      model->load_hf(directory);
    });
    (void)ignored;
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
