#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_writer.h"
#include "checkpoints/hf_model.h"
#include "coordinator/control_plane.h"
#include "data/batches/sample_order.h"
#include "data/prompts/record_stream.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "launch/commands/commands.h"
#include "launch/commands/progress_display.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "model/kernels/device_choice.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "workers/common_kernels.h"
#include "workers/model_state.h"
#include "workers/train/distillation_trainer.h"
#include "workers/train/peak_flops.h"
#include "workers/train/training_checkpoint.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct QuestionAnswer {
  std::string question;
  std::string answer;
};

std::vector<QuestionAnswer> read_question_answers(const PretrainSettings& settings) {
  std::vector<QuestionAnswer> items;
  for (const std::string& file : settings.files) {
    RecordStream stream(file);
    RawRecord record;
    while (stream.next(record)) {
      const Json json = Json::parse(record.text, nullptr, false);
      const auto text = [&](const std::string& field) {
        if (!json.is_object() || !json.contains(field) || !json[field].is_string()) {
          throw DataError(fmt::format("{}:{}: no text under \"{}\"", file, record.line, field));
        }
        return json[field].get<std::string>();
      };
      items.push_back({text(settings.question_field), text(settings.answer_field)});
    }
  }
  return items;
}

// The sample order's endless stream over samples that are kept in memory.
class ConversationSamples final : public SampleSource {
 public:
  ConversationSamples(std::vector<CausalSample> samples, const SampleOrderOptions& order,
                      std::int64_t steps)
      : order_(order), steps_(steps), samples_(std::move(samples)) {}

  [[nodiscard]] std::int64_t size() const override {
    return steps_ * order_.options().batch_samples;
  }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    return static_cast<std::int64_t>(at(index).tokens.size());
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override { return at(index); }

 private:
  [[nodiscard]] const CausalSample& at(std::int64_t index) const {
    return samples_[static_cast<std::size_t>(order_.at(index))];
  }

  SampleOrder order_;
  std::int64_t steps_;
  std::vector<CausalSample> samples_;
};

// Question and answer as one ChatML conversation; the answer is what is learnt.
CausalSample make_sample(const QuestionAnswer& item, const BytePairTokenizer& tokenizer,
                         const ChatTemplate& chat) {
  const ChatMessage messages[] = {{"user", item.question}, {"assistant", item.answer}};
  const std::string prompt = chat.render(std::span(messages, 1), true);
  const std::string whole = chat.render(messages, false);
  if (!whole.starts_with(prompt)) {
    throw ConfigError("the chat template does not continue its generation prompt with the answer");
  }
  CausalSample sample;
  sample.tokens = tokenizer.encode(prompt);
  sample.first_target = static_cast<std::int64_t>(sample.tokens.size());
  const std::vector<TokenId> answer =
      tokenizer.encode(std::string_view(whole).substr(prompt.size()));
  sample.tokens.insert(sample.tokens.end(), answer.begin(), answer.end());
  return sample;
}

ConversationSamples load_samples(const PretrainConfig& config, const BytePairTokenizer& tokenizer) {
  const ChatTemplate chat = ChatTemplate::load(config.pretrain.tokenizer);
  const std::vector<QuestionAnswer> items = read_question_answers(config.pretrain);
  if (items.empty()) {
    throw DataError(fmt::format("no sample to train on: {} holds no record",
                                fmt::join(config.pretrain.files, ", ")));
  }
  std::vector<CausalSample> samples;
  for (const QuestionAnswer& item : items) {
    CausalSample sample = make_sample(item, tokenizer, chat);
    if (static_cast<std::int64_t>(sample.tokens.size()) <=
        config.pretrain.max_position_embeddings) {
      samples.push_back(std::move(sample));
    }
  }
  if (samples.empty()) {
    throw DataError(fmt::format(
        "no sample is left to train on: all {} are longer than pretrain.max_position_embeddings = "
        "{}; raise it or give shorter texts",
        items.size(), config.pretrain.max_position_embeddings));
  }
  spdlog::info("{} samples, {} left out as too long", samples.size(),
               items.size() - samples.size());
  const SampleOrderOptions order{config.run.seed, 0, static_cast<std::int64_t>(samples.size()),
                                 config.train.batch_samples};
  return {std::move(samples), order, config.pretrain.steps};
}

TransformerConfig model_config(const PretrainSettings& settings,
                               const BytePairTokenizer& tokenizer) {
  TransformerConfig config;
  config.vocabulary_size = tokenizer.vocabulary_size();
  config.hidden_size = settings.hidden_size;
  config.intermediate_size = settings.intermediate_size;
  config.num_layers = settings.num_layers;
  config.num_heads = settings.num_heads;
  config.num_kv_heads = settings.num_kv_heads;
  config.max_position_embeddings = settings.max_position_embeddings;
  config.rope_theta = settings.rope_theta;
  config.rms_norm_eps = settings.rms_norm_eps;
  config.tie_word_embeddings = settings.tie_word_embeddings;
  if (const auto eos = tokenizer.eos()) {
    config.eos_ids = {*eos};
  } else {
    throw DataError(
        "the tokenizer names no eos_token in tokenizer_config.json; pre-training needs one to end "
        "answers");
  }
  config.validate();
  return config;
}

std::string describe_pretraining(const PretrainConfig& config, int ranks) {
  const TransformerConfig model =
      model_config(config.pretrain, BytePairTokenizer::load(config.pretrain.tokenizer));
  const ParameterTable table(model, ranks);
  const auto parameters = static_cast<double>(table.flat_size());
  return fmt::format(
      "model: {} parameters\nranks: {}\nsteps: {} of {} samples\nweights, gradients and optimizer: "
      "{:.1f} MB per "
      "rank\ncheckpoint: {:.1f} MB\n",
      table.parameter_count(), ranks, config.pretrain.steps, config.train.batch_samples,
      parameters * (8 + 8.0 / ranks) / 1e6, 12 * parameters / 1e6);
}

// A model directory without weights: config, generation config and the tokenizer's files. The
// export takes it as source.
void write_model_skeleton(const fs::path& directory, const TransformerConfig& config,
                          const fs::path& tokenizer) {
  make_directory(directory);
  for (const auto& entry : fs::directory_iterator(tokenizer)) {
    if (entry.is_regular_file() && entry.path().extension() != ".safetensors") {
      publish_file(directory / entry.path().filename(), read_file(entry.path()));
    }
  }
  const nlohmann::ordered_json json = {{"architectures", {"Qwen2ForCausalLM"}},
                                       {"model_type", "qwen2"},
                                       {"vocab_size", config.vocabulary_size},
                                       {"hidden_size", config.hidden_size},
                                       {"intermediate_size", config.intermediate_size},
                                       {"num_hidden_layers", config.num_layers},
                                       {"num_attention_heads", config.num_heads},
                                       {"num_key_value_heads", config.num_kv_heads},
                                       {"max_position_embeddings", config.max_position_embeddings},
                                       {"hidden_act", "silu"},
                                       {"rms_norm_eps", config.rms_norm_eps},
                                       {"rope_theta", config.rope_theta},
                                       {"tie_word_embeddings", config.tie_word_embeddings},
                                       {"use_sliding_window", false},
                                       {"attention_dropout", 0.0},
                                       {"initializer_range", 0.02},
                                       {"use_cache", true},
                                       {"eos_token_id", config.eos_ids.front()},
                                       {"torch_dtype", "bfloat16"}};
  publish_file(directory / "config.json", json.dump(2) + "\n");
  publish_file(
      directory / "generation_config.json",
      nlohmann::ordered_json{{"do_sample", false}, {"eos_token_id", config.eos_ids.front()}}.dump(
          2) +
          "\n");
}

// Configuration keys of kind identity, and the hashes of tokenizer and data. Rank 0 reads, all
// ranks get it.
Identity pretrain_identity(const Communicator& comm, PretrainConfig& config) {
  Identity identity = identity_values(pretrain_fields(config));
  std::string tokenizer;
  std::string data;
  together(comm, [&] {
    if (comm.rank() == 0) {
      tokenizer = BytePairTokenizer::load(config.pretrain.tokenizer).content_hash();
      std::string hashes;
      for (const std::string& file : config.pretrain.files) {
        hashes += hash_hex(hash_file(file));
      }
      data = hash_hex(hash64(hashes));
    }
  });
  identity["tokenizer.hash"] = broadcast_text(comm, tokenizer, 0);
  identity["data.hash"] = broadcast_text(comm, data, 0);
  return identity;
}

// What the parts of one pre-training job share.
struct Job {
  const Communicator& comm;
  const PretrainConfig& config;
  const JobOptions& options;
  const Identity& identity;
  RunDirectory& directory;
  PhaseClock& clock;

  void enter_training() const { clock.enter("pretrain", config.run.hang_limit_seconds); }
  // A slow disk is no hang.
  void enter_checkpoint() const { clock.enter("checkpoint", 0); }
  [[nodiscard]] fs::path checkpoints() const { return config.run.directory / "checkpoints"; }
};

// Loads the checkpoint that --resume chooses, if there is one; returns the steps done.
std::int64_t resume(const Job& job, const ModelState& model, DistillationTrainer& trainer) {
  std::optional<Checkpoint> resumed;
  if (job.options.resume == "auto") {
    CheckpointSearch search = find_newest_checkpoint(job.comm, job.checkpoints());
    for (const std::string& reason : search.skipped) {
      spdlog::warn("checkpoint skipped: {}", reason);
    }
    resumed = std::move(search.newest);
  } else if (job.options.resume != "never") {
    resumed = open_checkpoint(job.comm, job.options.resume);
  }
  if (!resumed) {
    return 0;
  }
  expect_same_identity(resumed->directory.string(), resumed->manifest.state.identity, job.identity,
                       job.options.accept_changes, job.directory.accepted_changes());
  resume_training(job.comm, *resumed, model.table(), trainer.optimizer());
  spdlog::info("continuing after step {}", resumed->manifest.state.step);
  return resumed->manifest.state.step;
}

TrainOutcome train(const Job& job, const ModelState& model, DistillationTrainer& trainer,
                   const TrainPlan& plan, SampleSource& samples, MemoryAccount& account) {
  CheckpointWriter writer(job.comm, job.checkpoints(), job.config.checkpoint, account);
  ProgressDisplay display;
  display.begin("pretrain");
  TrainHooks hooks;
  hooks.clock = &job.clock;
  hooks.on_step = [&](const StepMetrics& metrics) {
    job.directory.log_step(0, metrics);
    if (job.comm.rank() == 0) {
      display.step(metrics, plan.total_steps);
    }
  };
  hooks.at_boundary = [&] { writer.poll(); };
  hooks.save = [&](std::int64_t step) {
    job.enter_checkpoint();
    save_training(writer, {0, step, "pretrain", 0, job.identity, Json::object().dump()},
                  model.table(), trainer.optimizer());
    job.enter_training();
  };
  const TrainOutcome outcome = trainer.run(samples, plan, hooks);
  job.enter_checkpoint();
  writer.finish();
  display.end();
  return outcome;
}

void export_model(const Job& job, const ModelState& model) {
  job.clock.enter("export", 0);
  together(job.comm, [&] {
    if (job.comm.rank() == 0) {
      const fs::path skeleton = job.config.run.directory / "model_skeleton";
      const fs::path& output = job.config.pretrain.output;
      write_model_skeleton(skeleton, model.config(), job.config.pretrain.tokenizer);
      export_hf_model(skeleton, output, model.config(), model.table(), model.weights(),
                      DType::bfloat16);
      fmt::print("{}: {} parameters\n", output.string(), model.table().parameter_count());
    }
  });
}

ExitCode pretrain(const Job& job) {
  const std::unique_ptr<KernelSet> kernels =
      make_common_kernel_set(job.comm, job.config.pretrain.device);
  job.directory.set_device(describe_device(kernels->device(), local_rank(job.comm)));
  job.directory.set_status("running", "pretrain");
  std::optional<ConversationSamples> samples;
  TransformerConfig dimensions;
  together(job.comm, [&] {
    const auto tokenizer = BytePairTokenizer::load(job.config.pretrain.tokenizer);
    dimensions = model_config(job.config.pretrain, tokenizer);
    samples.emplace(load_samples(job.config, tokenizer));
  });

  MemoryAccount account("pretraining");
  ModelState model(dimensions, job.comm.size(), account);
  model.initialise(job.config.run.seed);
  DistillationTrainer trainer({model.config(), model.table(), *kernels, job.comm, account},
                              model.weights(), job.config.train);
  TrainPlan plan;
  plan.total_steps = job.config.pretrain.steps;
  plan.checkpoint_every = job.config.checkpoint.every_steps;
  plan.peak_flops = measure_peak_flops(*kernels, job.comm);
  plan.steps_done = resume(job, model, trainer);
  job.enter_training();
  if (train(job, model, trainer, plan, *samples, account) == TrainOutcome::interrupted) {
    job.directory.set_status("interrupted", "pretrain");
    spdlog::warn("stopped; everything committed is safe, run the same command again to go on");
    return ExitCode::interrupted;
  }
  export_model(job, model);
  job.directory.set_status("finished", "pretrain");
  return ExitCode::ok;
}

// A status that cannot be written must not hide why the job failed.
void note_failure(RunDirectory& directory, const std::exception& failure) {
  try {
    directory.set_status("failed", failure.what());
  } catch (const std::exception& error) {
    spdlog::error("the run's status stays as it is: {}", error.what());
  }
}

}  // namespace

ExitCode pretrain_command(const JobOptions& options, const MpiSession& session) {
  Communicator comm = session.world().duplicate();
  PretrainConfig config;
  load_configuration(comm, options.config, [&](const std::string& text) {
    config = read_pretrain_config(text, options.config.string(), options.overrides);
    config.validate();
  });
  ExitCode code = ExitCode::ok;
  if (options.dry_run) {
    if (comm.rank() == 0) {
      fmt::print("{}", describe_pretraining(config, comm.size()));
    }
  } else {
    PhaseClock& clock = session.clock();
    ControlPlane control(comm, clock,
                         {.heartbeat_limit_seconds = config.run.heartbeat_limit_seconds});
    // Not the limit on hanging: whether another host's job holds the directory takes longer.
    clock.enter("start", 0);
    const Identity identity = pretrain_identity(comm, config);
    RunDirectory directory(comm, {config.run.directory, write_toml(pretrain_fields(config)),
                                  identity, options.accept_changes, options.resume == "never"});
    try {
      code = pretrain({comm, config, options, identity, directory, clock});
    } catch (const std::exception& error) {
      note_failure(directory, error);
      throw;
    }
    clock.enter("wait for the other ranks", 0);  // Rank 0 may still be writing run.json.
    comm.barrier();
    clock.enter("close", config.run.heartbeat_limit_seconds);
    control.close(comm);
  }
  comm.close();
  return code;
}

}  // namespace jforge
