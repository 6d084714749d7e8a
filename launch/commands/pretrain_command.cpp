#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/checkpoint_writer.h"
#include "checkpoints/hf_model.h"
#include "data/batches/sample_order.h"
#include "data/prompts/record_stream.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "launch/commands/commands.h"
#include "launch/commands/progress_display.h"
#include "launch/commands/run_directory.h"
#include "launch/config/job_fields.h"
#include "model/kernels/device_choice.h"
#include "runtime/comm/failure_agreement.h"
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

// Question and answer as one ChatML conversation; the answer is what is learnt.
class ConversationSamples final : public SampleSource {
 public:
  ConversationSamples(const PretrainConfig& config, const BytePairTokenizer& tokenizer,
                      const ChatTemplate& chat)
      : order_{config.run.seed, 0, 1, config.train.batch_samples}, steps_(config.pretrain.steps) {
    for (const QuestionAnswer& item : read_question_answers(config.pretrain)) {
      const ChatMessage messages[] = {{"user", item.question}, {"assistant", item.answer}};
      const std::string prompt = chat.render(std::span(messages, 1), true);
      const std::string whole = chat.render(messages, false);
      if (!whole.starts_with(prompt)) {
        throw ConfigError(
            "the chat template does not continue its generation prompt with the answer");
      }
      CausalSample sample;
      sample.tokens = tokenizer.encode(prompt);
      sample.first_target = static_cast<std::int64_t>(sample.tokens.size());
      const std::vector<TokenId> answer =
          tokenizer.encode(std::string_view(whole).substr(prompt.size()));
      sample.tokens.insert(sample.tokens.end(), answer.begin(), answer.end());
      if (static_cast<std::int64_t>(sample.tokens.size()) <=
          config.pretrain.max_position_embeddings) {
        samples_.push_back(std::move(sample));
      } else {
        ++too_long_;
      }
    }
    if (samples_.empty()) {
      throw DataError(
          "no sample is left to train on: every one is longer than "
          "pretrain.max_position_embeddings");
    }
    order_.num_samples = static_cast<std::int64_t>(samples_.size());
  }

  [[nodiscard]] std::int64_t size() const override { return steps_ * order_.batch_samples; }
  [[nodiscard]] std::int64_t length(std::int64_t index) const override {
    return static_cast<std::int64_t>(at(index).tokens.size());
  }
  [[nodiscard]] TrainingSample sample(std::int64_t index) override { return at(index); }
  [[nodiscard]] std::size_t count() const noexcept { return samples_.size(); }
  [[nodiscard]] std::size_t too_long() const noexcept { return too_long_; }

 private:
  [[nodiscard]] const CausalSample& at(std::int64_t index) const {
    const std::int64_t epoch = index / order_.num_samples;
    if (epoch != epoch_) {
      permutation_ = epoch_permutation(order_.seed, order_.round, epoch, order_.num_samples);
      epoch_ = epoch;
    }
    return samples_[static_cast<std::size_t>(
        permutation_[static_cast<std::size_t>(index % order_.num_samples)])];
  }

  SampleOrderOptions order_;
  std::int64_t steps_;
  std::vector<CausalSample> samples_;
  std::size_t too_long_ = 0;
  mutable std::int64_t epoch_ = -1;
  mutable std::vector<std::int64_t> permutation_;
};

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

}  // namespace

ExitCode pretrain_command(const JobOptions& options, const MpiSession& session) {
  Communicator comm = session.world().duplicate();
  PretrainConfig config = read_pretrain_config(read_and_broadcast(comm, options.config),
                                               options.config.string(), options.overrides);
  config.validate();
  if (options.dry_run) {
    if (comm.rank() == 0) {
      fmt::print("{}", describe_pretraining(config, comm.size()));
    }
    comm.close();
    return ExitCode::ok;
  }
  const std::vector<ConfigField> fields = pretrain_fields(config);
  const std::map<std::string, std::string> identity = identity_values(fields);
  RunDirectory directory(comm, {config.run.directory, write_toml(fields), identity,
                                options.accept_changes, options.resume == "never"});
  directory.set_status("running", "pretrain");
  const std::unique_ptr<KernelSet> kernels =
      make_common_kernel_set(comm, DeviceChoice::automatic);
  const BytePairTokenizer tokenizer = BytePairTokenizer::load(config.pretrain.tokenizer);
  ConversationSamples samples(config, tokenizer, ChatTemplate::load(config.pretrain.tokenizer));
  spdlog::info("{} samples, {} left out as too long", samples.count(), samples.too_long());

  MemoryAccount account("pretraining");
  const TransformerConfig dimensions = model_config(config.pretrain, tokenizer);
  ModelState model(dimensions, comm.size(), account);
  model.initialise(config.run.seed);
  PhaseClock clock;
  clock.enter("pretrain", config.run.hang_limit_seconds);
  const HangWatchdog watchdog(clock);
  DistillationTrainer trainer({model.config(), model.table(), *kernels, comm, account},
                              model.weights(), config.train);
  TrainPlan plan;
  plan.total_steps = config.pretrain.steps;
  plan.checkpoint_every = config.checkpoint.every_steps;
  plan.peak_flops = measure_peak_flops(*kernels, comm);
  const fs::path checkpoints = config.run.directory / "checkpoints";
  std::optional<Checkpoint> resumed;
  if (options.resume == "auto") {
    resumed = find_newest_checkpoint(comm, checkpoints).newest;
  } else if (options.resume != "never") {
    resumed = open_checkpoint(comm, options.resume);
  }
  if (resumed) {
    expect_same_identity(*resumed, identity, options.accept_changes);
    resume_training(comm, *resumed, model.table(), trainer.optimizer());
    plan.steps_done = resumed->manifest.state.step;
    spdlog::info("continuing after step {}", plan.steps_done);
  }
  CheckpointWriter writer(comm, checkpoints, config.checkpoint, account);
  ProgressDisplay display;
  display.begin("pretrain");
  TrainHooks hooks;
  hooks.clock = &clock;
  hooks.on_step = [&](const StepMetrics& metrics) {
    directory.log_step(0, metrics);
    if (comm.rank() == 0) {
      display.step(metrics, plan.total_steps);
    }
  };
  hooks.at_boundary = [&] { writer.poll(); };
  hooks.save = [&](std::int64_t step) {
    save_training(writer, {0, step, "pretrain", 0, identity, Json::object().dump()}, model.table(),
                  trainer.optimizer());
  };
  const TrainOutcome outcome = trainer.run(samples, plan, hooks);
  writer.finish();
  display.end();
  if (outcome == TrainOutcome::interrupted) {
    directory.set_status("interrupted", "pretrain");
    comm.close();
    return ExitCode::interrupted;
  }
  const bool ignored = agree(comm, false, [&] {
    if (comm.rank() == 0) {
      const fs::path skeleton = config.run.directory / "model_skeleton";
      write_model_skeleton(skeleton, dimensions, config.pretrain.tokenizer);
      export_hf_model(skeleton, config.pretrain.output, dimensions, model.table(), model.weights(),
                      DType::bfloat16);
      fmt::print("{}: {} parameters\n", config.pretrain.output.string(),
                 model.table().parameter_count());
    }
  });
  (void)ignored;
  directory.set_status("finished", "pretrain");
  comm.close();
  return ExitCode::ok;
}

}  // namespace jforge
