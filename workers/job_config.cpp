#include "workers/job_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/tasks/task.h"
#include "model/decoding/decoding_method.h"
#include "runtime/error.h"

namespace jforge {

namespace {

constexpr std::int32_t kNoiseWindowTokens = 256;  // The paper's 16 blocks of 16, and 8 of 32.

void validate_early_stop(const JobConfig& config) {
  const EarlyStopConfig& early_stop = config.train.early_stop;
  if (early_stop.every == 0) {
    return;
  }
  const TaskChoice choice = config.evaluate.choice(early_stop.task);
  static_cast<void>(make_task(choice.name, {.prompt_style = choice.prompt_style}));
  if (early_stop.data.empty() && config.evaluate.data.empty()) {
    throw ConfigError(
        "train.early_stop_data is missing: name the held-out problems (or evaluate.data)");
  }
  // A benchmark has one file, whatever the prompt's style.
  const auto evaluated = [&](const std::string& entry) {
    return config.evaluate.choice(entry).name == choice.name;
  };
  if (early_stop.data.empty() && std::ranges::any_of(config.evaluate.tasks, evaluated)) {
    throw ConfigError(fmt::format(
        "train.early_stop_data is missing: without it rounds would end by the problems of {} that "
        "evaluate.tasks is to measure; name held-out ones",
        choice.name));
  }
}

}  // namespace

NoiseScheduleOptions JobConfig::noise_schedule(std::int32_t round) const {
  const RoundSettings& settings = rounds.at(static_cast<std::size_t>(round - 1));
  NoiseScheduleOptions options;
  options.kind = settings.schedule;
  options.window = settings.noise_window;
  options.drop_initial_state = settings.drop_initial_state || compat == Compat::repo;
  if (compat == Compat::paper) {
    options.endpoint = ScheduleEndpoint::exclusive;
    options.measure = UnconvergedMeasure::positionwise;
    options.target = ScheduleTarget::ceil_count;
  }
  options.seed = run.seed;
  options.round = static_cast<std::uint64_t>(round);
  return options;
}

void JobConfig::apply_recipe() {
  if (recipe == Recipe::none) {
    return;
  }
  const bool clean = recipe == Recipe::clean_context;
  compat = recipe == Recipe::authors ? Compat::repo : Compat::none;
  train.reduction = LossReduction::token_mean;
  train.kept = KeptOffsets::from_first_difference;
  train.consistency_decay = clean ? 0.8F : 1.0F;
  train.train_prompt = false;
  if (recipe == Recipe::authors) {
    train.apply(compat);
    train.ar_weight = 1;
  }
  for (RoundSettings& round : rounds) {
    round.mask = clean ? MaskKind::clean : MaskKind::noise;
    round.schedule = clean ? ScheduleKind::random : ScheduleKind::linear;
    if (recipe == Recipe::jacobi_forcing && round.block_size > 0) {
      round.noise_window = std::max(1, kNoiseWindowTokens / round.block_size);
    } else if (recipe == Recipe::authors) {
      round.noise_window = 16;
    }
  }
}

Sharding JobConfig::sharding() const {
  return {.stage = train.optimizer.zero_stage,
          .compute = dtype_of(model.compute),
          .teacher = train.teacher == TeacherKind::frozen,
          .offload = train.optimizer.offload};
}

std::int64_t JobConfig::answer_tokens(const RoundSettings& round) const {
  return (generate.max_new_tokens + round.block_size - 1) / round.block_size * round.block_size;
}

std::int64_t JobConfig::required_positions(const RoundSettings& round, std::int64_t longest_prompt,
                                           const TransformerConfig& trained) const {
  const std::int64_t answer = answer_tokens(round);
  // Imported prompts stay: others belong into a run directory of their own.
  const std::int64_t room = trained.max_position_embeddings - answer;
  if (room < 1) {
    throw ConfigError(
        fmt::format("an answer of up to {} tokens leaves no room for a prompt, as the model has "
                    "max_position_embeddings = {}; lower generate.max_new_tokens",
                    answer, trained.max_position_embeddings));
  }
  if (longest_prompt > room) {
    throw ConfigError(
        fmt::format("the longest prompt has {} tokens and an answer up to {}, but the model has "
                    "max_position_embeddings = {}; lower generate.max_new_tokens, or set "
                    "prompts.max_prompt_tokens to {} or less in another run.directory",
                    longest_prompt, answer, trained.max_position_embeddings, room));
  }
  const std::int64_t rows = longest_prompt + 2 * answer;
  if (rows > train.tokens_per_rank) {
    throw ConfigError(fmt::format(
        "a prompt of {} tokens and an answer of up to {} may take {} rows as a sample, but "
        "train.tokens_per_rank = {}; raise it, lower generate.max_new_tokens, or set "
        "prompts.max_prompt_tokens in another run.directory",
        longest_prompt, answer, rows, train.tokens_per_rank));
  }
  return longest_prompt + answer;
}

TrainConfig JobConfig::train_config(std::int32_t round) const {
  const RoundSettings& settings = rounds.at(static_cast<std::size_t>(round - 1));
  TrainConfig result = train;
  result.mask = settings.mask;
  result.learning_rate = settings.learning_rate.value_or(train.learning_rate);
  result.compute = sharding().compute;
  result.proposals_seed = run.seed;
  result.apply(compat);
  return result;
}

void ModelSettings::choose_for(Device used) {
  expect_storage(decode_weights, used);
  if (compute == ComputeType::automatic) {
    compute = used == Device::cuda ? ComputeType::bfloat16 : ComputeType::float32;
  }
  if (used == Device::cuda && compute == ComputeType::bfloat16 &&
      decode_weights == WeightStorage::automatic) {
    decode_weights = WeightStorage::bfloat16_arithmetic;
  }
}

void RunSettings::validate() const {
  if (!(heartbeat_limit_seconds >= 2)) {  // NaN neither
    throw ConfigError(
        "run.heartbeat_limit_seconds must be at least 2 (heartbeats come once a second)");
  }
  if (!(hang_limit_seconds >= 10)) {  // NaN neither
    throw ConfigError("run.hang_limit_seconds must be at least 10");
  }
  if (!(stop_seconds >= 0 && stop_seconds <= 86'400)) {
    throw ConfigError("run.stop_seconds must be between 0 and 86400");
  }
}

void JobConfig::validate(int ranks) const {
  if (run.directory.empty()) {
    throw ConfigError("run.directory is missing: name the folder that the run writes to");
  }
  if (model.source.empty()) {
    throw ConfigError("model.source is missing: name a Hugging Face directory");
  }
  expect_device("model.device", model.device);
  run.validate();
  prompts.validate();
  generate.validate();
  checkpoint.validate();
  evaluate.validate();
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const RoundSettings& round = rounds[i];
    const auto number = static_cast<std::int32_t>(i + 1);
    const auto refuse = [&](const std::string& what) {
      throw ConfigError(fmt::format("[[rounds]] number {}: {}", number, what));
    };
    if (round.block_size < 1) {
      refuse("block_size must be at least 1");
    }
    if (round.epochs.has_value() == round.steps.has_value()) {
      refuse("give epochs or steps, one of them");
    }
    if ((round.steps && *round.steps < 1) || (round.epochs && !(*round.epochs > 0))) {
      refuse("epochs and steps must be positive");
    }
    if (round.steps.value_or(1) > kMostSteps || round.epochs.value_or(1) > kMostEpochs) {
      refuse(fmt::format("steps must be at most {}, epochs at most {}", kMostSteps, kMostEpochs));
    }
    if (round.optimizer == OptimizerStart::carry && number == 1) {
      refuse("optimizer = \"carry\" needs a round before it; set \"fresh\"");
    }
    if (train.drafter != Drafter::none && round.mask != MaskKind::clean) {
      refuse("mask must be \"clean\" with train.drafter: drafting rows see accepted tokens only");
    }
    noise_schedule(number).validate();
    train_config(number).validate();
  }
  for (const std::string& method : evaluate.methods) {
    const DrafterNeed need = make_decoding_method(method, evaluate.decoding, 0).need;
    const bool none = need == DrafterNeed::drafter && train.drafter == Drafter::none;
    if (!evaluate.tasks.empty() &&
        (none || (need == DrafterNeed::head && train.drafter != Drafter::head))) {
      throw ConfigError(
          fmt::format("evaluate.methods: \"{}\" needs a {}, and this run trains "
                      "none; set train.drafter, or leave the method out",
                      method, none ? "drafter" : "head"));
    }
  }
  validate_early_stop(*this);
  if (train.filter.task && !prompts.answer_field) {
    throw ConfigError(
        "train.filter_task needs reference answers: say in prompts.answer_field where the records "
        "have them");
  }
  if (train.batch_samples < ranks && !train.allow_idle_ranks) {
    throw ConfigError(
        fmt::format("train.batch_samples = {} is fewer than the {} ranks; raise it or set "
                    "train.allow_idle_ranks = true",
                    train.batch_samples, ranks));
  }
}

SampleOrderOptions JobConfig::sample_order(std::int32_t round, std::int64_t num_prompts) const {
  return {run.seed, static_cast<std::uint64_t>(round), num_prompts, train.batch_samples};
}

std::int64_t JobConfig::total_steps(std::int32_t round, std::int64_t num_prompts) const {
  const RoundSettings& settings = rounds.at(static_cast<std::size_t>(round - 1));
  return settings.steps
             ? *settings.steps
             : steps_for_epochs(sample_order(round, num_prompts), settings.epochs.value_or(1));
}

std::vector<PromptId> JobConfig::prompts_of_round(std::int32_t round,
                                                  std::int64_t num_prompts) const {
  std::vector<PromptId> used =
      consumed_samples(sample_order(round, num_prompts), total_steps(round, num_prompts));
  int place = 0;
  std::erase_if(used, [&](PromptId) { return place++ % part.second != part.first - 1; });
  return used;
}

}  // namespace jforge
