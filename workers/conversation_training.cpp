#include "workers/conversation_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/hf_model.h"
#include "checkpoints/tokenizer_fit.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/log.h"
#include "workers/model_shard.h"
#include "workers/phases/train_phase.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

SampleOrderOptions order_of(const ConversationTraining& training, std::size_t samples) {
  return {training.run.seed, 0, static_cast<std::int64_t>(samples), training.train.batch_samples};
}

void expect_samples_fit(const ConversationTraining& training,
                        const std::vector<CausalSample>& samples) {
  const auto longest = std::ranges::max_element(
      samples, {}, [](const CausalSample& sample) { return sample.tokens.size(); });
  if (std::cmp_greater(longest->tokens.size(), training.train.tokens_per_rank)) {
    throw ConfigError(fmt::format(
        "the longest sample has {} tokens but train.tokens_per_rank is {}; raise it or lower {}",
        longest->tokens.size(), training.train.tokens_per_rank, training.files.longest_key));
  }
}

/// Collective. Loads the weights that training begins with.
void load_weights(const ConversationTraining& training, ModelShard& model) {
  if (training.new_model) {
    model.initialise(training.run.seed);
  } else {
    model.load_hf(training.source);
  }
}

/// Whether `checkpoint` is of a training with the same steps and epochs.
bool same_length(const Checkpoint& checkpoint, const Identity& present, const std::string& phase) {
  const Identity& recorded = checkpoint.manifest.state.identity;
  const auto value = [](const Identity& identity, const std::string& key) {
    const auto found = identity.find(key);
    return found == identity.end() ? std::string() : found->second;
  };
  return std::ranges::all_of(std::array{"steps", "epochs"}, [&](const char* name) {
    const std::string key = phase + "." + name;
    return value(recorded, key) == value(present, key);
  });
}

}  // namespace

ConversationTraining training_of(const PretrainConfig& config) {
  const PretrainSettings& settings = config.pretrain;
  ConversationTraining training;
  training.phase = "pretrain";
  training.run = config.run;
  training.train = config.train;
  training.checkpoint = config.checkpoint;
  training.device = settings.device;
  training.source = settings.tokenizer;
  training.new_model = settings;
  training.files.files = settings.files;
  training.files.question_field = "question";
  training.files.answer_field = "answer";
  training.files.longest_key = "pretrain.max_position_embeddings";
  training.steps = settings.steps;
  training.output = settings.output;
  return training;
}

ConversationTraining training_of(const FinetuneConfig& config) {
  const FinetuneSettings& settings = config.finetune;
  ConversationTraining training;
  training.phase = "finetune";
  training.run = config.run;
  training.train = config.train;
  training.train.compute = dtype_of(config.model.compute);
  training.checkpoint = config.checkpoint;
  training.device = config.model.device;
  training.source = config.model.source;
  training.files.files = settings.files;
  training.files.question_field = settings.question_field;
  training.files.answer_field = settings.answer_field;
  training.files.longest_key = "finetune.max_tokens";
  training.max_tokens = settings.max_tokens;
  training.epochs = settings.epochs;
  training.steps = settings.steps;
  training.output = settings.output;
  training.chat_template = {settings.chat_template.has_value(), settings.template_arguments};
  training.stored = dtype_of(config.model.export_as);
  return training;
}

PreparedTraining prepare(const ConversationTraining& training) {
  PreparedTraining prepared;
  const auto tokenizer = BytePairTokenizer::load(training.source);
  ConversationFiles files = training.files;
  files.train_prompt = training.train.train_prompt;
  if (training.new_model) {
    prepared.model = new_model_config(*training.new_model, tokenizer);
  } else {
    prepared.model = read_hf_config(training.source);
    expect_tokenizer_fits(training.source, tokenizer, prepared.model);
  }
  files.eos_ids = prepared.model.eos_ids;
  files.whole_end = training.new_model.has_value();
  const std::int64_t positions = prepared.model.max_position_embeddings;
  files.longest = std::min(training.max_tokens.value_or(positions), positions);
  const auto chat = ChatTemplate::load(training.source, training.chat_template);
  expect_turns_stop(tokenizer, chat, prepared.model);
  prepared.samples = read_conversations(files, tokenizer, chat);
  expect_samples_fit(training, prepared.samples);
  prepared.steps = training.steps ? *training.steps
                                  : steps_for_epochs(order_of(training, prepared.samples.size()),
                                                     training.epochs.value_or(1));
  return prepared;
}

std::string content_hash(const PreparedTraining& prepared) {
  std::string listing = fmt::format("{} {}\n", prepared.steps, prepared.model.vocabulary_size);
  for (const CausalSample& sample : prepared.samples) {
    listing += fmt::format("{} {}\n", sample.first_target,
                           hash_hex(hash64(std::as_bytes(std::span(sample.tokens)))));
  }
  return hash_hex(hash64(listing));
}

void identify_training(const Communicator& comm, const ConversationTraining& training,
                       Identity& identity) {
  Identity hashes;
  together(comm, [&] {
    if (comm.rank() == 0) {
      std::string data;
      for (const std::string& file : training.files.files) {
        data += hash_hex(hash_file(file));
      }
      hashes["data.hash"] = hash_hex(hash64(data));
      hashes["tokenizer.hash"] = BytePairTokenizer::load(training.source).content_hash();
    }
  });
  for (const char* const key : {"data.hash", "tokenizer.hash"}) {
    identity[key] = broadcast_text(comm, hashes[key], 0);
  }
  if (!training.new_model) {
    identity["model.hash"] = hf_model_hash(comm, training.source);
  }
}

namespace {

/// Throws ConfigError if `search` found a checkpoint beyond the training's end, DataError if the
/// checkpoints of a training that has written its output are gone.
void expect_steps_left(const ConversationTraining& training, const PreparedTraining& prepared,
                       const ConversationServices& services, const Identity& identity,
                       const ResumeChoice& choice, const CheckpointSearch& search) {
  const std::optional<Checkpoint>& resumed = search.newest;
  const std::int64_t steps_done = resumed ? resumed->manifest.state.step : 0;
  if (steps_done > prepared.steps) {
    throw ConfigError(fmt::format(
        "the training is to end after step {}, and {} is farther; raise {}.steps (or epochs), or "
        "--resume from an earlier checkpoint",
        prepared.steps, resumed->directory.string(), training.phase));
  }
  if (services.finished_before && choice.kind == ResumeChoice::Kind::automatic &&
      search.skipped.empty() && fs::exists(training.output) && steps_done < prepared.steps &&
      (!resumed || same_length(*resumed, identity, training.phase))) {
    throw lost_checkpoints(RunLayout(training.run.directory).checkpoints(),
                           training.output.string(), "move that away to train again");
  }
}

/// Collective. Writes the trained model to training.output.
void export_model(const ConversationTraining& training, const PreparedTraining& prepared,
                  const Communicator& comm, const ModelShard& model, MemoryAccount& account) {
  together(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    // Weights are not gathered for export; rank 0 reads the checkpoint tensor by tensor.
    const Checkpoint last = open_checkpoint(RunLayout(training.run.directory).checkpoints() /
                                            checkpoint_directory_name(0, prepared.steps));
    CheckpointTensors tensors(last, model.table(), account);
    if (training.new_model) {
      export_new_hf_model(training.source, training.output, model.config(), model.table(),
                          std::ref(tensors), training.stored);
    } else {
      export_hf_model(training.source, training.output, model.config(), model.table(),
                      std::ref(tensors), {.stored = training.stored});
    }
  });
}

}  // namespace

bool train_on_conversations(const ConversationTraining& training, PreparedTraining prepared,
                            const ConversationServices& services, const Identity& identity,
                            const ResumeChoice& choice, const AcceptedChanges& accepted) {
  const Communicator& comm = services.comm;
  const RunLayout layout(training.run.directory);
  const SampleOrderOptions order = order_of(training, prepared.samples.size());
  ConversationSamples samples(std::move(prepared.samples), order, prepared.steps);
  MemoryAccount account(training.phase);
  ModelShard model(prepared.model, comm, account, &services.grid);
  const CheckpointSearch search = find_checkpoint(comm, layout.checkpoints(), choice);
  const std::optional<Checkpoint>& resumed = search.newest;
  together(comm,
           [&] { expect_steps_left(training, prepared, services, identity, choice, search); });
  if (!resumed) {
    services.clock.enter("load the weights");
    load_weights(training, model);
  }
  TrainPhase phase(services, model, training.train,
                   {.name = training.phase,
                    .recorded_as = training.phase,
                    .steps = prepared.steps,
                    .layout = layout,
                    .checkpoint = training.checkpoint,
                    .identity = identity,
                    .cursors = [](std::int64_t) { return std::string("{}"); }},
                   account);
  if (resumed) {
    expect_same_identity(resumed->directory.string(), resumed->manifest.state.identity, identity,
                         accepted.keys, accepted.earlier);
    expect_same_samples(*resumed, identity);
    if (choice.kind == ResumeChoice::Kind::path) {
      leave_newer_checkpoints(comm, layout.checkpoints(), *resumed,
                              [] { return std::vector<fs::path>(); });
    }
    phase.resume(*resumed);
    log_info("continuing after step {}", resumed->manifest.state.step);
  }
  if (services.on_accepted) {
    services.on_accepted(!resumed || resumed->manifest.state.step < prepared.steps);
  }
  if (phase.run(samples, services.on_step) == TrainOutcome::interrupted) {
    return false;
  }
  services.clock.enter("export");
  export_model(training, prepared, comm, model, account);
  return true;
}

}  // namespace jforge
