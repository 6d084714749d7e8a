#include "launch/commands/job_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/hf_model.h"
#include "data/batches/sample_order.h"
#include "data/prompts/prompt_store.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

std::string megabytes(double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); }

// Prompts of the run: counted when they are imported, else the configured limit, else unknown.
std::optional<std::int64_t> known_prompts(const JobConfig& config) {
  const RunLayout layout(config.run.directory);
  if (std::filesystem::exists(layout.prompts())) {
    return PromptStore::open(layout.prompts(), SealCheck::size).size();
  }
  return config.prompts.limit;
}

}  // namespace

std::string describe_plan(const JobConfig& config, int ranks) {
  const TransformerConfig model = read_hf_config(config.model.source);
  const ParameterTable table(model, ranks);
  const auto parameters = static_cast<double>(table.flat_size());
  std::string text =
      fmt::format("model: {} parameters, {} layers, vocabulary {}\nranks: {}\n",
                  table.parameter_count(), model.num_layers, model.vocabulary_size, ranks);
  text += fmt::format("weights in memory: {} per rank\n", megabytes(4 * parameters));
  text += fmt::format("training state (ZeRO-1): gradients {}, optimizer {} per rank\n",
                      megabytes(4 * parameters), megabytes(8 * parameters / ranks));
  text += fmt::format("checkpoint: {} in {} shards, the last {} kept\n", megabytes(12 * parameters),
                      ranks, config.checkpoint.keep_last);
  const std::optional<std::int64_t> prompts = known_prompts(config);
  for (std::size_t i = 0; i < config.rounds.size(); ++i) {
    const RoundSettings& round = config.rounds[i];
    const std::int64_t answer = (config.generate.max_new_tokens + round.block_size - 1) /
                                round.block_size * round.block_size;
    const std::int64_t positions =
        config.prompts.max_prompt_tokens.value_or(model.max_position_embeddings - answer) + answer;
    const auto cache = static_cast<double>(InferenceTransformer::cache_bytes_per_slot(
                           model, static_cast<std::int32_t>(positions))) *
                       config.generate.batch_prompts;
    text += fmt::format("round {}: block size {}, window {}; key/value cache {} per rank\n", i + 1,
                        round.block_size, round.noise_window, megabytes(cache));
    if (!prompts) {
      text += "  prompts not imported yet: steps and leases unknown\n";
      continue;
    }
    const SampleOrderOptions order{config.run.seed, i + 1, *prompts, config.train.batch_samples};
    const std::int64_t steps =
        round.steps ? *round.steps : steps_for_epochs(order, round.epochs.value_or(1));
    const auto generated = static_cast<std::int64_t>(consumed_samples(order, steps).size());
    text += fmt::format(
        "  at least {} leases of at most {} prompts\n",
        (generated + config.generate.prompts_per_lease - 1) / config.generate.prompts_per_lease,
        config.generate.prompts_per_lease);
    text += fmt::format(
        "  {} prompts generated, {} samples consumed in {} steps of {}; at most {} of "
        "trajectories\n",
        generated, steps * config.train.batch_samples, steps, config.train.batch_samples,
        megabytes(static_cast<double>(generated) * static_cast<double>(2 * answer + positions) *
                  4));
  }
  return text;
}

}  // namespace jforge
