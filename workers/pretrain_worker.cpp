#include "workers/pretrain_worker.h"

#include <optional>
#include <string>
#include <utility>

#include "checkpoints/checkpoint_writer.h"
#include "checkpoints/hf_model.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/log.h"
#include "workers/model_state.h"
#include "workers/run_layout.h"
#include "workers/train/conversation_samples.h"
#include "workers/train/distillation_trainer.h"
#include "workers/train/peak_flops.h"
#include "workers/train/training_checkpoint.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

constexpr const char* kPhase = "pretrain";

ConversationSamples load_samples(const PretrainConfig& config, const BytePairTokenizer& tokenizer) {
  const PretrainSettings& settings = config.pretrain;
  std::vector<CausalSample> samples =
      read_conversations({settings.files, settings.question_field, settings.answer_field,
                          settings.max_position_embeddings},
                         tokenizer, ChatTemplate::load(settings.tokenizer));
  const SampleOrderOptions order{config.run.seed, 0, static_cast<std::int64_t>(samples.size()),
                                 config.train.batch_samples};
  return {std::move(samples), order, settings.steps};
}

}  // namespace

void identify_pretraining(const Communicator& comm, const PretrainSettings& settings,
                          Identity& identity) {
  std::string tokenizer;
  std::string data;
  together(comm, [&] {
    if (comm.rank() == 0) {
      tokenizer = BytePairTokenizer::load(settings.tokenizer).content_hash();
      std::string hashes;
      for (const std::string& file : settings.files) {
        hashes += hash_hex(hash_file(file));
      }
      data = hash_hex(hash64(hashes));
    }
  });
  identity["tokenizer.hash"] = broadcast_text(comm, tokenizer, 0);
  identity["data.hash"] = broadcast_text(comm, data, 0);
}

bool pretrain(const PretrainConfig& config, const PretrainServices& services,
              const Identity& identity, const ResumeChoice& choice,
              const AcceptedChanges& accepted) {
  const Communicator& comm = services.comm;
  const fs::path checkpoints = config.run.directory / "checkpoints";
  const auto on_disk = [&](const auto& work) {
    services.clock.enter("checkpoint");
    work();
    services.clock.enter(kPhase);
  };
  std::optional<ConversationSamples> samples;
  TransformerConfig dimensions;
  together(comm, [&] {
    const auto tokenizer = BytePairTokenizer::load(config.pretrain.tokenizer);
    dimensions = new_model_config(config.pretrain, tokenizer);
    samples.emplace(load_samples(config, tokenizer));
  });

  MemoryAccount account("pretraining");
  ModelState model(dimensions, comm.size(), account);
  model.initialise(config.run.seed);
  DistillationTrainer trainer({model.config(), model.table(), services.kernels, comm, account},
                              model.weights(), config.train);
  TrainPlan plan;
  plan.total_steps = config.pretrain.steps;
  plan.checkpoint_every = config.checkpoint.every_steps;
  plan.peak = PeakFlops(services.kernels, comm, config.train.compute,
                        RunLayout(config.run.directory).peak_flops());
  if (const auto resumed = find_checkpoint(comm, checkpoints, choice)) {
    expect_same_identity(resumed->directory.string(), resumed->manifest.state.identity, identity,
                         accepted.keys, accepted.earlier);
    resume_training(comm, *resumed, model.table(), trainer.optimizer(), account);
    plan.steps_done = resumed->manifest.state.step;
    plan.state = trainer_state_of(resumed->manifest.state.cursors);
    spdlog::info("continuing after step {}", plan.steps_done);
  }
  services.clock.enter(kPhase);
  CheckpointWriter writer(comm, checkpoints, config.checkpoint, account);
  TrainHooks hooks;
  hooks.clock = &services.clock;
  hooks.on_step = services.on_step;
  hooks.at_boundary = [&] { writer.poll(); };
  hooks.save = [&](std::int64_t step) {
    on_disk([&] {
      save_training(writer,
                    {0, step, kPhase, 0, identity, with_trainer_state("{}", trainer.state())},
                    model.table(), trainer.optimizer());
    });
  };
  const TrainOutcome outcome = trainer.run(*samples, plan, hooks);
  on_disk([&] { writer.finish(); });
  trainer.store().gather_masters(model.weights());
  if (outcome == TrainOutcome::interrupted) {
    return false;
  }
  services.clock.enter("export");
  together(comm, [&] {
    if (comm.rank() == 0) {
      export_new_hf_model(config.pretrain.tokenizer, config.pretrain.output, model.config(),
                          model.table(), values_in(model.weights()), DType::bfloat16);
    }
  });
  return true;
}

}  // namespace jforge
