#include "launch/config/job_fields.h"

#include <fmt/format.h>

#include <cmath>

namespace jforge {

// Found by FieldList::add through SweepAxis's namespace.
std::optional<std::string> read_value(const toml::node& node, SweepAxis& axis) {
  const toml::array* array = node.as_array();
  const std::string expected =
      std::string("an array, each element ") +
      (std::holds_alternative<double>(axis.kind) ? "a number" : "a whole number");
  if (array == nullptr) {
    return expected;
  }
  std::vector<DecodingValue> values;
  for (const toml::node& element : *array) {
    DecodingValue value = axis.kind;
    if (read_value(element, value)) {
      return expected;
    }
    values.push_back(value);
  }
  axis.values = std::move(values);
  return std::nullopt;
}

std::optional<std::string> write_value(const SweepAxis& axis) {
  std::string text = "[";
  for (const DecodingValue& value : axis.values) {
    text += (text.size() == 1 ? "" : ", ") + write_value(value).value_or("");
  }
  return text + "]";
}

namespace {

constexpr FieldKind kIdentity = FieldKind::identity;
constexpr FieldKind kOperational = FieldKind::operational;

constexpr EnumName<ComputeType> kComputeTypes[] = {{ComputeType::float32, "float32"},
                                                   {ComputeType::bfloat16, "bfloat16"}};
constexpr EnumName<PromptSample> kSamples[] = {{PromptSample::first, "first"},
                                               {PromptSample::random, "random"}};
constexpr EnumName<StoredStates> kStoredStates[] = {{StoredStates::all, "all"},
                                                    {StoredStates::selected, "selected"}};
constexpr EnumName<ScheduleKind> kSchedules[] = {{ScheduleKind::linear, "linear"},
                                                 {ScheduleKind::random, "random"},
                                                 {ScheduleKind::reverse, "reverse"}};
constexpr EnumName<ScheduleEndpoint> kEndpoints[] = {{ScheduleEndpoint::inclusive, "inclusive"},
                                                     {ScheduleEndpoint::exclusive, "exclusive"}};
constexpr EnumName<UnconvergedMeasure> kMeasures[] = {
    {UnconvergedMeasure::prefix, "prefix"}, {UnconvergedMeasure::positionwise, "positionwise"}};
constexpr EnumName<ScheduleTarget> kTargets[] = {{ScheduleTarget::ratio, "ratio"},
                                                 {ScheduleTarget::ceil_count, "ceil_count"}};
constexpr EnumName<MaskKind> kMasks[] = {
    {MaskKind::noise, "noise"}, {MaskKind::window, "window"}, {MaskKind::clean, "clean"}};
constexpr EnumName<LossReduction> kReductions[] = {{LossReduction::token_mean, "token_mean"},
                                                   {LossReduction::paper, "paper"},
                                                   {LossReduction::repo, "repo"}};
constexpr EnumName<KeptOffsets> kKept[] = {
    {KeptOffsets::from_first_difference, "from_first_difference"}, {KeptOffsets::all, "all"}};
constexpr EnumName<OptimizerStart> kOptimizerStarts[] = {{OptimizerStart::fresh, "fresh"},
                                                         {OptimizerStart::carry, "carry"}};
constexpr EnumName<Compat> kCompat[] = {
    {Compat::none, "none"}, {Compat::repo, "repo"}, {Compat::paper, "paper"}};

void add_run(FieldList& fields, RunSettings& run) {
  fields.in("run");
  fields.add("directory", run.directory, kOperational);
  fields.add("seed", run.seed, kIdentity);
  fields.add("heartbeat_limit_seconds", run.heartbeat_limit_seconds, kOperational);
  fields.add("hang_limit_seconds", run.hang_limit_seconds, kOperational);
}

void add_model(FieldList& fields, ModelSettings& model) {
  fields.in("model");
  fields.add("source", model.source, kOperational);  // its content is hashed into the identity
  fields.add_enum("compute", model.compute, kIdentity, kComputeTypes);
  fields.add_enum("device", model.device, kOperational, kDeviceNames);
  fields.add_enum("export_as", model.export_as, kOperational, kComputeTypes);
}

void add_prompts(FieldList& fields, PromptImportConfig& prompts) {
  fields.in("prompts");
  fields.add("files", prompts.files, kIdentity);
  fields.add("field", prompts.field, kIdentity);
  fields.add("keep_if", prompts.keep_if, kIdentity);
  fields.add("order_by", prompts.order_by, kIdentity);
  fields.add_enum("sample", prompts.sample, kIdentity, kSamples);
  fields.add("system", prompts.system, kIdentity);
  fields.add("template", prompts.chat_template, kIdentity);
  fields.add("limit", prompts.limit, kIdentity);
  fields.add("max_prompt_tokens", prompts.max_prompt_tokens, kIdentity);
  fields.add("max_bad_records", prompts.max_bad_records, kOperational);
  fields.add("max_bad_fraction", prompts.max_bad_fraction, kOperational);
  fields.add("threads", prompts.threads, kOperational);
}

void add_generate(FieldList& fields, GenerateConfig& generate) {
  fields.in("generate");
  fields.add("max_new_tokens", generate.max_new_tokens, kIdentity);
  fields.add("batch_prompts", generate.batch_prompts, kOperational);
  fields.add_enum("store_states", generate.store_states, kIdentity, kStoredStates);
  fields.add("prompts_per_lease", generate.prompts_per_lease, kOperational);
  fields.add("lease_seconds", generate.lease_seconds, kOperational);
}

void add_rounds(FieldList& fields, std::vector<RoundSettings>& rounds) {
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    RoundSettings& round = rounds[i];
    fields.in("rounds." + std::to_string(i));
    fields.add("block_size", round.block_size, kIdentity);
    fields.add("noise_window", round.noise_window, kIdentity);
    fields.add_enum("schedule", round.schedule, kIdentity, kSchedules);
    fields.add_enum("endpoint", round.endpoint, kIdentity, kEndpoints);
    fields.add_enum("measure", round.measure, kIdentity, kMeasures);
    fields.add_enum("target", round.target, kIdentity, kTargets);
    fields.add_enum("mask", round.mask, kIdentity, kMasks);
    fields.add("epochs", round.epochs, kIdentity);
    fields.add("steps", round.steps, kIdentity);
    fields.add("learning_rate", round.learning_rate, kIdentity);
    fields.add_enum("optimizer", round.optimizer, kIdentity, kOptimizerStarts);
  }
}

void add_train(FieldList& fields, TrainConfig& train) {
  fields.in("train");
  fields.add("learning_rate", train.learning_rate, kIdentity);
  fields.add("minimum_rate_ratio", train.minimum_rate_ratio, kIdentity);
  fields.add("warmup_ratio", train.warmup_ratio, kIdentity);
  fields.add("batch_samples", train.batch_samples, kIdentity);
  fields.add("tokens_per_rank", train.tokens_per_rank, kOperational);
  fields.add("ar_weight", train.ar_weight, kIdentity);
  fields.add("consistency_weight", train.consistency_weight, kIdentity);
  fields.add_enum("reduction", train.reduction, kIdentity, kReductions);
  fields.add_enum("kept", train.kept, kIdentity, kKept);
  fields.add("train_prompt", train.train_prompt, kIdentity);
  fields.add("activation_checkpointing", train.activation_checkpointing, kOperational);
  fields.add("allow_idle_ranks", train.allow_idle_ranks, kOperational);
  fields.add("gradient_norms_every", train.gradient_norms_every, kOperational);
  fields.add("beta1", train.optimizer.beta1, kIdentity);
  fields.add("beta2", train.optimizer.beta2, kIdentity);
  fields.add("epsilon", train.optimizer.epsilon, kIdentity);
  fields.add("weight_decay", train.optimizer.weight_decay, kIdentity);
  fields.add("clip_norm", train.optimizer.clip_norm, kIdentity);
  fields.add("zero_stage", train.optimizer.zero_stage, kOperational);
  fields.add("check_replicas_every", train.optimizer.check_replicas_every, kOperational);
  fields.add("check_owned_state", train.optimizer.check_owned_state, kOperational);
}

void add_checkpoint(FieldList& fields, CheckpointConfig& checkpoint) {
  fields.in("checkpoint");
  fields.add("every_steps", checkpoint.every_steps, kOperational);
  fields.add("keep_last", checkpoint.keep_last, kOperational);
  fields.add("keep_every", checkpoint.keep_every, kOperational);
}

void add_evaluate(FieldList& fields, EvaluateConfig& evaluate) {
  fields.in("evaluate");
  fields.add("tasks", evaluate.tasks, kOperational);
  fields.add("methods", evaluate.methods, kOperational);
  fields.add("data", evaluate.data, kOperational);
  fields.add("prompt_style", evaluate.prompt_style, kOperational);
  for (auto& [key, value] : evaluate.decoding) {
    fields.add(key.c_str(), value, kOperational);
  }
  fields.add("max_new_tokens", evaluate.max_new_tokens, kOperational);
  fields.add("limit", evaluate.limit, kOperational);
  fields.add("batch_prompts", evaluate.batch_prompts, kOperational);
}

void add_sweep(FieldList& fields, SweepConfig& sweep) {
  fields.in("sweep");
  fields.add("method", sweep.method, kOperational);
  fields.add("tasks", sweep.tasks, kOperational);
  fields.add("include_ar", sweep.include_ar, kOperational);
  for (auto& [key, axis] : sweep.axes) {
    fields.add(key.c_str(), axis, kOperational);
  }
}

// What train.compat fixes becomes the value of those keys, so that resolved file and identity say
// what is computed. A value of the document that contradicts it is refused.
void apply_compat(JobConfig& config, const TomlDocument& document) {
  const std::vector<ConfigField> given = job_fields(config);
  std::vector<std::optional<std::string>> before;
  for (const ConfigField& field : given) {
    before.push_back(field.write());
  }
  config.train.apply(config.compat);
  for (std::size_t i = 0; i < config.rounds.size(); ++i) {
    const NoiseScheduleOptions schedule = config.noise_schedule(static_cast<std::int32_t>(i + 1));
    config.rounds[i].endpoint = schedule.endpoint;
    config.rounds[i].measure = schedule.measure;
    config.rounds[i].target = schedule.target;
  }
  std::string compat;
  for (const ConfigField& field : given) {
    compat = field.path() == "train.compat" ? field.write().value_or("") : compat;
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::optional<std::string> fixed = given[i].write();
    if (fixed != before[i] && document.holds(given[i])) {
      throw ConfigError(fmt::format(
          "{} = {} contradicts train.compat = {}, which means {}; leave out one of the two",
          given[i].path(), before[i].value_or(""), compat, fixed.value_or("")));
    }
  }
}

}  // namespace

std::vector<ConfigField> job_fields(JobConfig& config) {
  FieldList fields;
  add_run(fields, config.run);
  add_model(fields, config.model);
  add_prompts(fields, config.prompts);
  add_generate(fields, config.generate);
  add_rounds(fields, config.rounds);
  add_train(fields, config.train);
  fields.add_enum("compat", config.compat, kIdentity, kCompat);
  add_checkpoint(fields, config.checkpoint);
  add_evaluate(fields, config.evaluate);
  add_sweep(fields, config.sweep);
  return fields.take();
}

JobConfig read_job_config(const std::string& text, const std::string& file_name,
                          const std::vector<std::string>& overrides) {
  TomlDocument document(text, file_name);
  for (const std::string& assignment : overrides) {
    document.set(assignment);
  }
  JobConfig config;
  config.rounds.resize(document.array_size("rounds"));
  document.apply(job_fields(config));
  apply_compat(config, document);
  return config;
}

namespace {

// Dimensions that no model can have are the configuration's fault; beyond them TransformerConfig
// has the last word.
void validate_model(const PretrainSettings& settings) {
  const auto at_least_one = [](const char* key, std::int64_t value) {
    if (value < 1) {
      throw ConfigError(fmt::format("pretrain.{} = {} must be at least 1", key, value));
    }
  };
  at_least_one("hidden_size", settings.hidden_size);
  at_least_one("intermediate_size", settings.intermediate_size);
  at_least_one("num_layers", settings.num_layers);
  at_least_one("num_heads", settings.num_heads);
  at_least_one("num_kv_heads", settings.num_kv_heads);
  at_least_one("max_position_embeddings", settings.max_position_embeddings);
  if (settings.hidden_size % settings.num_heads != 0) {
    throw ConfigError(
        fmt::format("pretrain.hidden_size = {} is not a multiple of pretrain.num_heads = {}",
                    settings.hidden_size, settings.num_heads));
  }
  if (settings.num_heads % settings.num_kv_heads != 0) {
    throw ConfigError(
        fmt::format("pretrain.num_heads = {} is not a multiple of pretrain.num_kv_heads = {}",
                    settings.num_heads, settings.num_kv_heads));
  }
  if (settings.hidden_size / settings.num_heads % 2 != 0) {
    throw ConfigError(fmt::format(
        "pretrain.hidden_size / pretrain.num_heads = {} is odd: rotary positions need pairs",
        settings.hidden_size / settings.num_heads));
  }
  if (!(settings.rms_norm_eps > 0 && settings.rms_norm_eps < 1)) {
    throw ConfigError(
        fmt::format("pretrain.rms_norm_eps = {} is outside (0, 1)", settings.rms_norm_eps));
  }
  if (!(settings.rope_theta > 1 && std::isfinite(settings.rope_theta))) {
    throw ConfigError(fmt::format("pretrain.rope_theta = {} is not above 1", settings.rope_theta));
  }
}

}  // namespace

void PretrainConfig::validate() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) {
      throw ConfigError(what);
    }
  };
  require(!run.directory.empty(),
          "run.directory is missing: name the folder for checkpoints and logs");
  require(!pretrain.tokenizer.empty(),
          "pretrain.tokenizer is missing: name a directory with tokenizer files");
  require(!pretrain.output.empty(),
          "pretrain.output is missing: name the model directory to write");
  require(!pretrain.files.empty(), "pretrain.files is missing: name at least one JSONL file");
  require(pretrain.steps >= 1, "pretrain.steps must be at least 1");
  expect_device("pretrain.device", pretrain.device);
  validate_model(pretrain);
  train.validate();
  checkpoint.validate();
}

std::vector<ConfigField> pretrain_fields(PretrainConfig& config) {
  FieldList fields;
  add_run(fields, config.run);
  PretrainSettings& pretrain = config.pretrain;
  fields.in("pretrain");
  fields.add("tokenizer", pretrain.tokenizer, kOperational);
  fields.add("output", pretrain.output, kOperational);
  fields.add("files", pretrain.files, kOperational);
  fields.add_enum("device", pretrain.device, kOperational, kDeviceNames);
  fields.add("question_field", pretrain.question_field, kIdentity);
  fields.add("answer_field", pretrain.answer_field, kIdentity);
  fields.add("hidden_size", pretrain.hidden_size, kIdentity);
  fields.add("intermediate_size", pretrain.intermediate_size, kIdentity);
  fields.add("num_layers", pretrain.num_layers, kIdentity);
  fields.add("num_heads", pretrain.num_heads, kIdentity);
  fields.add("num_kv_heads", pretrain.num_kv_heads, kIdentity);
  fields.add("max_position_embeddings", pretrain.max_position_embeddings, kIdentity);
  fields.add("rope_theta", pretrain.rope_theta, kIdentity);
  fields.add("rms_norm_eps", pretrain.rms_norm_eps, kIdentity);
  fields.add("tie_word_embeddings", pretrain.tie_word_embeddings, kIdentity);
  fields.add("steps", pretrain.steps, kIdentity);
  add_train(fields, config.train);
  add_checkpoint(fields, config.checkpoint);
  return fields.take();
}

PretrainConfig read_pretrain_config(const std::string& text, const std::string& file_name,
                                    const std::vector<std::string>& overrides) {
  TomlDocument document(text, file_name);
  for (const std::string& assignment : overrides) {
    document.set(assignment);
  }
  PretrainConfig config;
  document.apply(pretrain_fields(config));
  return config;
}

}  // namespace jforge
