#include "launch/commands/job_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoints/hf_model.h"
#include "data/batches/sample_order.h"
#include "data/prompts/prompt_store.h"
#include "launch/commands/available_memory.h"
#include "model/kernels/device_loss.h"
#include "model/transformer/cache_pages.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/parameter_table.h"
#include "model/transformer/training_transformer.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/comm/rank_grid.h"
#include "runtime/error.h"
#include "runtime/tensor/cuda_memory.h"
#include "runtime/tensor/matrix_product.h"
#include "workers/job_kernels.h"
#include "workers/model_shard.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

std::string megabytes(double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); }

struct KnownPrompts {
  std::optional<std::int64_t> count;    ///< Imported, else the limit, else unknown.
  std::optional<double> mean_tokens;    ///< After the import.
  std::optional<std::int64_t> longest;  ///< After the import.
  std::vector<std::int64_t> lengths;    ///< After the import, else empty.
};

KnownPrompts known_prompts(const JobConfig& config) {
  const RunLayout layout(config.run.directory);
  if (!std::filesystem::exists(layout.prompts())) {
    return {config.prompts.limit, std::nullopt, std::nullopt, {}};
  }
  const PromptStore store = PromptStore::open(layout.prompts(), SealCheck::size);
  KnownPrompts known{store.size(), 0.0, 0, {}};
  for (PromptId id = 0; id < store.size(); ++id) {
    const std::int64_t length = store.length(id);
    known.lengths.push_back(length);
    known.longest = std::max(*known.longest, length);
    *known.mean_tokens += static_cast<double>(length);
  }
  *known.mean_tokens /= static_cast<double>(std::max<std::int64_t>(1, store.size()));
  return known;
}

std::int64_t longest_answer(const JobConfig& config) {
  std::int64_t longest = 0;
  for (const RoundSettings& round : config.rounds) {
    longest = std::max(longest, config.answer_tokens(round));
  }
  return longest;
}

/// Returns the cache rows of a generated prompt besides its positions.
std::int64_t generation_branch_rows(const JobConfig& config) {
  std::int64_t rows = 0;
  for (const RoundSettings& round : config.rounds) {
    GenerateOptions options;
    options.method = config.generate.method;
    options.block_size = round.block_size;
    options.max_new_tokens = config.generate.max_new_tokens;
    rows = std::max(rows, options.required_branch_rows());
  }
  return rows;
}

/// Returns the pages for full-length answers.
std::int64_t generation_pages(const JobConfig& config, const TransformerConfig& model, DType cache,
                              const PlannedPrompts& prompts, std::int64_t places) {
  const std::int64_t answer = longest_answer(config);
  const std::int64_t branch_rows = generation_branch_rows(config);
  if (prompts.lengths.empty()) {
    return std::min(places * cache_pages(prompts.longest + answer, branch_rows),
                    config.generate.most_cache_pages(model, cache));
  }
  BatchPages batch(places);
  for (const std::int64_t length : prompts.lengths) {
    batch.add(cache_pages(length + answer, branch_rows));
  }
  return config.generate.cache_pages(model, cache, batch);
}

/// Returns the longest prompt that the settings allow.
std::int64_t prompt_limit(const JobConfig& config, const TransformerConfig& model,
                          std::int64_t answer) {
  return config.prompts.max_prompt_tokens.value_or(
      std::max<std::int64_t>(0, model.max_position_embeddings - answer));
}

std::int64_t divided_up(std::int64_t all, std::int64_t parts) { return (all + parts - 1) / parts; }

std::string describe_memory(const MemoryPlan& plan, PlannedRanks ranks) {
  const bool host = plan.device == Device::cpu;
  const double probed = plan.probe.gathered + plan.probe.decoding;
  std::string text =
      fmt::format("between phases: {} of weights per rank\n", megabytes(plan.weights));
  text += fmt::format(
      "generation: packed weights and work space {}, {} gathered to pack them, key/value cache {}; "
      "{} per rank in all{}\n",
      megabytes(plan.decoding), megabytes(plan.gathered), megabytes(plan.cache),
      megabytes(plan.generation()),
      host ? "" : fmt::format(" and {} on the device", megabytes(plan.generation_on_device())));
  text += fmt::format(
      "training (ZeRO stage {}, {}): weights {}, gradients {}, optimizer {}, {}communication {}, "
      "activations of {} rows {}, {}{}copy for checkpoints {}; {} per rank in all{}\n",
      plan.sharding.stage, dtype_name(plan.sharding.compute), megabytes(plan.state.weights),
      megabytes(plan.state.gradients), megabytes(plan.state.optimizer),
      plan.sharding.teacher ? fmt::format("teacher {}, ", megabytes(plan.state.teacher))
      : plan.frozen > 0     ? fmt::format("frozen model {}, ", megabytes(plan.frozen))
                            : "",
      megabytes(plan.state.communication), plan.rows, megabytes(plan.activations),
      host ? "" : fmt::format("vocabulary loss {}, ", megabytes(plan.loss)),
      probed > 0 ? fmt::format("checks {}, ", megabytes(probed)) : "", megabytes(plan.snapshot),
      megabytes(plan.training()),
      host ? "" : fmt::format(" and {} on the device", megabytes(plan.training_on_device())));
  text += fmt::format("memory of a host with {} of the ranks: generation {}, training {}\n",
                      ranks.of_node, megabytes(ranks.of_node * plan.generation()),
                      megabytes(ranks.of_node * plan.training()));
  text += fmt::format(
      "a step of {} micro-batch{} sends from each rank {}: gradients {}, weights {}{}\n",
      plan.micro_batches, plan.micro_batches == 1 ? "" : "es", megabytes(plan.payload.total()),
      megabytes(plan.payload.all_reduce + plan.payload.reduce_scatter),
      megabytes(plan.payload.all_gather),
      plan.payload.across > 0
          ? fmt::format(", gradients to other copies {}", megabytes(plan.payload.across))
          : "");
  return text;
}

/// Returns the type of generation's matrices in `round` (1-based). "auto" is bfloat16 only for a
/// bfloat16 source in round 1: a trained round leaves float32.
DType decoding_type(const JobConfig& config, std::size_t round, bool source_is_bfloat16) {
  const WeightStorage storage = config.model.decode_weights;
  if (storage == WeightStorage::int8) {
    return DType::int8;
  }
  const bool halved =
      rounds(storage) || (storage == WeightStorage::automatic && round == 1 && source_is_bfloat16);
  return halved ? DType::bfloat16 : DType::float32;
}

}  // namespace

double MemoryPlan::generation() const {
  return weights + gathered + (device == Device::cpu ? decoding + cache : 0);
}

double MemoryPlan::training() const {
  // The shard is here when training begins and ends, but never beside a checkpoint's copy.
  return (sharding.home(device) == Device::cpu ? state.total() : 0) + snapshot + probe.gathered +
         (device == Device::cpu ? frozen + activations + probe.decoding : 0);
}

double MemoryPlan::generation_on_device() const {
  return device == Device::cpu ? 0 : decoding + cache + products;
}

double MemoryPlan::training_on_device() const {
  return device == Device::cpu ? 0
                               : (sharding.offload ? copies : state.total()) + frozen +
                                     activations + loss + probe.decoding + products;
}

MemoryPlan plan_training(const TransformerConfig& model, const ParameterTable& table,
                         const TrainConfig& train, const Sharding& sharding, Device device,
                         const StepRows& rows, int copies) {
  MemoryPlan plan;
  plan.device = device;
  plan.weights = 4 * static_cast<double>(shard_vector_size(table));
  plan.gathered = gathered_bytes(table);
  plan.sharding = sharding;
  plan.state = training_memory(table, sharding);
  plan.snapshot = 3 * plan.weights;
  plan.rows = rows.packed;
  plan.micro_batches = rows.micro_batches;
  TrainingTransformer::Options options = train.transformer_options();
  options.compute = sharding.compute;
  if (train.drafter == Drafter::head) {
    options.head = completed(train.head, model);
    const TrainingTransformer::Options reading{
        .compute = sharding.compute, .forward_only = true, .features = options.head->features};
    // Half of the rows are clean.
    plan.activations = static_cast<double>(
        TrainingTransformer::bytes(head_config(model, *options.head), rows.packed, options) +
        TrainingTransformer::bytes(model, (rows.packed + 1) / 2, reading));
  } else {
    plan.activations = static_cast<double>(TrainingTransformer::bytes(model, rows.packed, options));
  }
  if (train.drafter != Drafter::none) {
    const ParameterTable base(model, table.shard_count());
    plan.frozen = static_cast<double>(storage_bytes(base.flat_size(), sharding.compute));
    plan.weights += 4 * static_cast<double>(shard_vector_size(base));
    plan.gathered = gathered_bytes(base);
  }
  if (device != Device::cpu) {
    plan.products = static_cast<double>(kProductWorkspaceBytes);
    plan.loss = static_cast<double>(device_loss_bytes(rows.packed + rows.taught, model.hidden_size,
                                                      model.vocabulary_size, sharding.compute));
  }
  plan.copies = sharding.home(device) == device ? 0 : device_copies(table, sharding);
  plan.payload = step_payload(table, sharding, rows.micro_batches, copies);
  return plan;
}

namespace {

/// Returns an upper bound of a round's prompts: those that its steps train on.
std::optional<std::int64_t> most_generated(const JobConfig& config,
                                           std::optional<std::int64_t> count) {
  std::optional<std::int64_t> most;
  for (const RoundSettings& round : config.rounds) {
    std::optional<std::int64_t> here = count;
    if (round.steps) {
      here = *round.steps * config.train.batch_samples;
    } else if (count) {
      here = static_cast<std::int64_t>(
          std::ceil(static_cast<double>(*count) * round.epochs.value_or(1)));
    }
    if (!here) {
      return std::nullopt;
    }
    most = std::max(most.value_or(0), std::min(*here, count.value_or(*here)));
  }
  return most ? most : count;
}

}  // namespace

MemoryPlan plan_memory(const JobConfig& config, const TransformerConfig& model, int ranks,
                       Device device, const PlannedPrompts& prompts, bool source_is_bfloat16) {
  const int of_copy = ranks_of_copy(ranks, config.train.shard_ranks);
  const ParameterTable table = config.train.table(model, of_copy);
  const std::int64_t answer = longest_answer(config);
  // As in generation: no more places than prompts of a rank.
  const std::optional<std::int64_t> generated = most_generated(config, prompts.count);
  const std::int64_t places = std::clamp<std::int64_t>(
      generated ? divided_up(*generated, ranks) : config.generate.batch_prompts, 1,
      config.generate.batch_prompts);
  const Sharding sharding = config.sharding();
  const std::int64_t samples = divided_up(config.train.batch_samples, ranks);
  const std::int64_t sample_rows = std::max<std::int64_t>(1, prompts.longest + 2 * answer);
  const std::int64_t budget = config.train.tokens_per_rank;
  StepRows rows{
      .packed = std::min(budget, samples * sample_rows),
      .micro_batches = divided_up(samples, std::max<std::int64_t>(1, budget / sample_rows))};
  if (sharding.teacher) {
    // A frozen teacher adds a row per noisy row (at most half) and per clean row that it distils.
    const bool distils = config.train.ar_loss == ArLoss::distillation;
    rows.taught = distils ? rows.packed : (rows.packed + 1) / 2;
  }
  MemoryPlan plan =
      plan_training(model, table, config.train, sharding, device, rows, ranks / of_copy);
  // The last round's matrices are the largest.
  const DType packed =
      decoding_type(config, std::max<std::size_t>(1, config.rounds.size()), source_is_bfloat16);
  WeightStorage storage = config.model.decode_weights;
  if (storage == WeightStorage::automatic) {
    storage = packed == DType::bfloat16 ? WeightStorage::bfloat16 : WeightStorage::float32;
  }
  plan.decoding =
      static_cast<double>(InferenceTransformer::bytes(
          model, {.num_slots = 1, .slot_capacity = 1, .weights = storage}, device)) -
      static_cast<double>(
          InferenceTransformer::cache_bytes(model, 1, cache_type(storage, device))) -
      static_cast<double>(InferenceTransformer::embedding_bytes(model, storage, device)) +
      static_cast<double>(
          InferenceTransformer::embedding_bytes(model, config.model.decode_weights, device));
  const DType cache = cache_type(config.model.decode_weights, device);
  const auto cache_of = [&](std::int64_t sequences) {
    return static_cast<double>(InferenceTransformer::cache_bytes(
        model, generation_pages(config, model, cache, prompts, sequences), cache));
  };
  plan.cache = cache_of(places);
  plan.least_cache = cache_of(1);
  if (plan.sharding.teacher) {
    plan.activations += static_cast<double>(
        TrainingTransformer::bytes(model, std::min(plan.rows, samples * (prompts.longest + answer)),
                                   {.compute = plan.sharding.compute, .forward_only = true}));
  }
  plan.probe = probe_memory(config, model, table, device,
                            std::max(prompts.longest, prompts.longest_problem));
  return plan;
}

void expect_fits(const MemoryPlan& plan, const JobConfig& config, const PlannedPhases& phases,
                 int ranks_here, std::uint64_t available) {
  const auto check = [&](bool planned, const char* phase, double needed,
                         const std::string& advice) {
    if (planned && needed * ranks_here > static_cast<double>(available)) {
      throw EnvironmentError(fmt::format(
          "{} needs about {} of memory on each rank, {} for the {} on this host, and {} "
          "are available here; {}use fewer ranks per host",
          phase, megabytes(needed), megabytes(needed * ranks_here),
          ranks_here == 1 ? "one" : fmt::format("{}", ranks_here),
          megabytes(static_cast<double>(available)), advice));
    }
  };
  const bool host = plan.device == Device::cpu;
  check(phases.generation, "generation", plan.generation(),
        host ? fmt::format("lower generate.batch_prompts (now {}), set generate.cache_mb lower or ",
                           config.generate.batch_prompts)
             : "");
  check(phases.training, "training", plan.training(),
        host ? fmt::format("lower train.tokens_per_rank (now {}), set "
                           "train.activation_checkpointing = true or ",
                           config.train.tokens_per_rank)
             : "");
}

void expect_fits_device(const MemoryPlan& plan, const JobConfig& config,
                        const PlannedPhases& phases, int ranks_here, std::uint64_t available) {
  MemoryPlan least = plan;
  least.cache = ranks_here == 1 ? plan.least_cache : plan.cache;
  const DeviceRows rows = rows_on_device(least);
  const auto check = [&](bool planned, const char* phase,
                         const std::vector<DeviceRows::Row>& labels, const std::string& advice) {
    double needed = 0;
    std::string parts;
    for (const auto& [label, bytes] : labels) {
      needed += bytes;
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", label, megabytes(bytes));
    }
    if (planned && needed * ranks_here > static_cast<double>(available)) {
      throw EnvironmentError(fmt::format(
          "{} needs about {} on the device of each rank ({}){}, and {} are free there; {}", phase,
          megabytes(needed), parts,
          ranks_here == 1 ? "" : fmt::format(", which {} ranks share", ranks_here),
          megabytes(static_cast<double>(available)), advice));
    }
  };
  const std::string smaller =
      ranks_here == 1
          ? fmt::format("lower generate.max_new_tokens (now {}), set",
                        config.generate.max_new_tokens)
          : fmt::format("lower generate.batch_prompts (now {}), set generate.cache_mb lower or",
                        config.generate.batch_prompts);
  check(phases.generation, "generation", rows.generation,
        smaller +
            " model.decode_weights = \"bfloat16\" (\"int8\" on the CPU), or take a device that "
            "holds the model: it is "
            "not spread over several while it decodes");
  check(phases.training, "training", rows.training,
        fmt::format("raise train.zero_stage (now {}) on more ranks, set train.optimizer_offload = "
                    "true or train.activation_checkpointing = true, or lower "
                    "train.tokens_per_rank (now {})",
                    plan.sharding.stage, config.train.tokens_per_rank));
}

SharingRanks sharing_ranks(const Communicator& comm, Device device) {
  SharingRanks sharing{.host = ranks_on_host(comm)};
  if (device != Device::cpu) {
    // Not by devices: Slurm may let each rank see only its own.
    std::string own;
    together(comm, [&] { own = cuda_device_uuid(); });
    sharing.device = ranks_that_name(comm, own);
  }
  return sharing;
}

void expect_fits_here(const MemoryPlan& plan, const JobConfig& config, const PlannedPhases& phases,
                      SharingRanks sharing) {
  if (const std::optional<std::uint64_t> available = available_memory()) {
    expect_fits(plan, config, phases, sharing.host, *available);
  }
  if (plan.device == Device::cpu) {
    return;
  }
  if (const std::optional<std::uint64_t> available = cuda_memory::available()) {
    expect_fits_device(plan, config, phases, sharing.device, *available);
  }
}

void expect_memory(const JobConfig& config, const PlannedPhases& phases, Device device,
                   const Communicator& comm) {
  const SharingRanks sharing = sharing_ranks(comm, device);
  static_cast<void>(agree(comm, false, [&] {
    if (config.rounds.empty()) {
      return;
    }
    const KnownPrompts known = known_prompts(config);
    const TransformerConfig model = read_hf_config(config.model.source);
    expect_attention(device, model);
    const MemoryPlan plan = plan_memory(config, model, comm.size(), device,
                                        {known.count, known.longest.value_or(0), known.lengths,
                                         longest_held_out_problem(config, model)},
                                        hf_matrices_are_bfloat16(config.model.source));
    expect_fits_here(plan, config, phases, sharing);
  }));
}

namespace {

/// Estimated bytes of a context, cuBLAS' workspaces and NCCL's channels.
constexpr double kLibraryBytes = 3e9;

std::string describe_device(const JobConfig& config, const TransformerConfig& model, int ranks,
                            const KnownDevice& device, const MemoryPlan& plan,
                            std::int64_t longest_prompt, const MachineSpeed& speed,
                            double weight_bytes) {
  const DType compute = plan.sharding.compute;
  std::string text = fmt::format(
      "{}, calculated from its data sheet, nothing was measured: {:.0f} GB, {:.3g} TFLOP/s in {}, "
      "{:.0f} GB/s, {:.0f} GB/s to other devices\n",
      device.name, device.memory_bytes / 1e9, device.flops(compute) / 1e12, dtype_name(compute),
      device.bytes_per_second / 1e9, device.link_bytes_per_second / 1e9);
  if (ranks > kDevicesPerNode) {
    text += fmt::format(
        "  assumed: {} nodes of {} devices with {:.0f} Gb/s each to other nodes, used together by "
        "NCCL's rings: {:.0f} GB/s for what a rank sends\n",
        divided_up(ranks, kDevicesPerNode), kDevicesPerNode, 8 * kNodeLinkBytesPerSecond / 1e9,
        speed.link_bytes_per_second / 1e9);
  }
  const WeightStorage storage = config.model.decode_weights;
  if (activation_type(storage, Device::cuda) == DType::float32) {
    text += fmt::format(
        "  model.decode_weights = \"{}\" decodes with float32 products, {:.3g} TFLOP/s; "
        "\"bfloat16_arithmetic\" has {:.3g}, {:.1f} times as many, and rounds\n",
        name_of(storage), device.float32_flops / 1e12, device.bfloat16_flops / 1e12,
        device.bfloat16_flops / device.float32_flops);
  }
  const auto phase = [&](const char* name, std::vector<DeviceRows::Row> rows) {
    rows.emplace_back("CUDA, cuBLAS and NCCL", kLibraryBytes);
    double sum = 0;
    std::string labels;
    for (const auto& [label, bytes] : rows) {
      sum += bytes;
      labels += fmt::format("{}{} {}", labels.empty() ? "" : ", ", label, megabytes(bytes));
    }
    text += fmt::format("  {} on the device: {}; {} in all, {:.1f} % of its memory{}\n", name,
                        labels, megabytes(sum), 100 * sum / device.memory_bytes,
                        sum > device.memory_bytes ? ": DOES NOT FIT" : "");
  };
  const DeviceRows rows = rows_on_device(plan);
  phase("generation", rows.generation);
  phase("training", rows.training);

  const double weights = weight_bytes * matrix_weights(model);
  text += fmt::format(
      "  a forward reads {} of weights: {:.3g} ms at least, so at most {:.4g} tokens/s of one "
      "sequence at one token a pass\n",
      megabytes(weights), 1e3 * weights / device.bytes_per_second,
      device.bytes_per_second / weights);
  RoundWork step;
  step.steps = 1;
  step.step_samples = divided_up(config.train.batch_samples, ranks);
  step.prompt_tokens = static_cast<double>(longest_prompt);
  step.answer_tokens = longest_answer(config);
  step.recompute = config.train.activation_checkpointing;
  step.drafter_forwards =
      drafter_forwards(model, config.train.drafter_shape(model), step.recompute);
  const double expected = estimate_round(model, step, speed).train;
  text += fmt::format(
      "  a step of {} samples of full length, {} on a rank: {:.3g} s of arithmetic at {:.0f} % of "
      "the peak, {:.3g} s at all of it; beside it {:.3g} s to send {}\n",
      config.train.batch_samples, step.step_samples, expected, 100 * kPlannedEfficiency,
      expected * kPlannedEfficiency, sending_seconds(plan.payload, speed),
      megabytes(plan.payload.total()));
  return text;
}

/// Everything that describe_round() needs.
struct PlannedJob {
  const JobConfig& config;
  const TransformerConfig& model;
  const KnownPrompts& known;
  const MemoryPlan& memory;
  Device device;
  const MachineSpeed& speed;
  int ranks;
  bool source_is_bfloat16;
};

/// Adds the round's time to `total`.
std::string describe_round(const PlannedJob& job, std::size_t i, RoundSeconds& total) {
  const auto& [config, model, known, memory, device, speed, ranks, source_is_bfloat16] = job;
  const RoundSettings& round = config.rounds[i];
  const std::int64_t answer = config.answer_tokens(round);
  const std::int64_t positions =
      known.longest
          ? config.required_positions(round, *known.longest, model)  // refuses what the run would
          : prompt_limit(config, model, answer) + answer;
  std::string text = fmt::format("round {}: block size {}, window {}\n", i + 1, round.block_size,
                                 round.noise_window);
  // Before the import only steps limit the prompts.
  const bool of_a_thousand = !known.count && !round.steps;
  const std::int64_t store =
      known.count.value_or(round.steps ? *round.steps * config.train.batch_samples : 1000);
  if (of_a_thousand) {
    text += "  prompts not imported yet and prompts.limit not set: figures for each 1000 prompts\n";
  }
  const auto number = static_cast<std::int32_t>(i + 1);
  const std::int64_t steps = config.total_steps(number, store);
  // A store that is as large as the steps need is used up.
  const std::int64_t generated =
      known.count || of_a_thousand
          ? static_cast<std::int64_t>(config.prompts_of_round(number, store).size())
          : store;
  const std::int64_t leases = divided_up(generated, config.generate.prompts_per_lease);
  text += fmt::format("  at least {} lease{} of at most {} prompts, a file each\n", leases,
                      leases == 1 ? "" : "s", config.generate.prompts_per_lease);
  // Per block the last state and one more, or all states.
  const std::int64_t stored =
      config.generate.store_states == StoredStates::all ? round.block_size + 1 : 2;
  text += fmt::format(
      "  {} prompts generated, {} samples consumed in {} steps of {}; at most {} of "
      "trajectories\n",
      generated, steps * config.train.batch_samples, steps, config.train.batch_samples,
      megabytes(static_cast<double>(generated) * static_cast<double>(stored * answer + positions) *
                4));
  RoundWork work;
  work.prompts_generated = divided_up(generated, ranks);
  work.steps = steps;
  work.step_samples = divided_up(config.train.batch_samples, ranks);
  work.step_payload = memory.payload;
  work.prompt_tokens = known.mean_tokens.value_or(static_cast<double>(positions - answer));
  work.answer_tokens = answer;
  work.block_size = round.block_size;
  const std::int64_t request =
      cache_pages(std::llround(work.prompt_tokens) + answer, generation_branch_rows(config));
  work.batch_prompts = std::clamp<std::int64_t>(
      config.generate.most_cache_pages(model, cache_type(config.model.decode_weights, device)) /
          request,
      1, std::clamp<std::int64_t>(work.prompts_generated, 1, config.generate.batch_prompts));
  text +=
      fmt::format("  a rank generates {} of the prompts, up to {} at once{}\n",
                  work.prompts_generated, work.batch_prompts,
                  generated < ranks ? fmt::format("; {} ranks have none", ranks - generated) : "");
  work.weight_bytes =
      static_cast<double>(dtype_bytes(decoding_type(config, i + 1, source_is_bfloat16)));
  work.recompute = config.train.activation_checkpointing;
  work.drafter_forwards =
      drafter_forwards(model, config.train.drafter_shape(model), work.recompute);
  const RoundSeconds seconds = estimate_round(model, work, speed);
  total.generate += seconds.generate;
  total.train += seconds.train;
  text +=
      fmt::format("  time, estimated: at most {} to generate, {} to train{}\n",
                  duration_text(seconds.generate), duration_text(seconds.train),
                  known.mean_tokens ? "" : " (prompts not imported yet: taken at their limits)");
  return text;
}

}  // namespace

std::string describe_plan(const JobConfig& config, PlannedRanks planned, Device device,
                          const MachineSpeed& speed, const KnownDevice* sheet) {
  const int ranks = planned.all;
  const TransformerConfig model = read_hf_config(config.model.source);
  const ParameterTable table =
      config.train.table(model, ranks_of_copy(ranks, config.train.shard_ranks));
  const int shards = table.shard_count();
  const auto parameters = static_cast<double>(table.flat_size());
  std::string text = fmt::format(
      "model: {} parameters, {} layers, vocabulary {}{}\nranks: {}\n",
      ParameterTable(model, 1).parameter_count(), model.num_layers, model.vocabulary_size,
      table.kind() == ParameterTable::Kind::model
          ? ""
          : fmt::format("; drafter: {} parameters", table.parameter_count()),
      ranks);
  const KnownPrompts known = known_prompts(config);
  const bool source_is_bfloat16 = hf_matrices_are_bfloat16(config.model.source);
  const std::int64_t longest_prompt =
      known.longest.value_or(prompt_limit(config, model, longest_answer(config)));
  const MemoryPlan memory = plan_memory(
      config, model, ranks, device,
      {known.count, longest_prompt, known.lengths, longest_held_out_problem(config, model)},
      source_is_bfloat16);
  text += describe_memory(memory, planned);
  if (sheet != nullptr) {
    const DType decoded =
        decoding_type(config, std::max<std::size_t>(1, config.rounds.size()), source_is_bfloat16);
    text += describe_device(config, model, ranks, *sheet, memory, longest_prompt, speed,
                            static_cast<double>(dtype_bytes(decoded)));
  } else if (const auto available = available_memory()) {
    text += fmt::format("memory available here: {}\n", megabytes(static_cast<double>(*available)));
  }
  const double checkpoint = 12 * parameters;
  // Besides those kept: the end of the round before, and the one being written.
  const std::int64_t checkpoints = config.checkpoint.keep_last + 1 + (config.rounds.size() > 1);
  text += fmt::format(
      "checkpoint: {} in {} shards, the last {} kept; at most {} in {} files at a time, without "
      "those of checkpoint.keep_every. A restart reads one and repeats at most {} steps\n",
      megabytes(checkpoint), shards, config.checkpoint.keep_last,
      megabytes(static_cast<double>(checkpoints) * checkpoint), checkpoints * (shards + 1),
      config.checkpoint.every_steps);
  text += fmt::format(
      "{}, each rank: {:.1f} GFLOP/s in decoding, {:.1f} in training, {:.1f} GB/s; time estimates "
      "below assume {:.0f} % of these FLOP/s, one token per forward pass and answers of full "
      "length{}\n",
      sheet != nullptr ? "data sheet, not measured" : "measured here", speed.decoding_flops / 1e9,
      speed.training_flops / 1e9, speed.bytes_per_second / 1e9, 100 * kPlannedEfficiency,
      sheet != nullptr || ranks == 1 ? "" : "; what ranks send is not counted");
  const std::int64_t samples = divided_up(config.train.batch_samples, ranks);
  if (const std::int64_t places = samples * ranks; places > config.train.batch_samples) {
    text += fmt::format(
        "samples are not split: {} in a step are at most {} on a rank, and {:.0f} % of the ranks' "
        "time in training is idle; make train.batch_samples a multiple of the ranks, or use {}, "
        "which take as long\n",
        config.train.batch_samples, samples,
        100 * (1 - static_cast<double>(config.train.batch_samples) / static_cast<double>(places)),
        divided_up(config.train.batch_samples, samples));
  }
  if (config.model.decode_weights == WeightStorage::automatic && source_is_bfloat16 &&
      config.rounds.size() > 1) {
    text +=
        "model.decode_weights = \"auto\": from round 2 on, matrices are float32, and a pass "
        "reads twice round 1's bytes; \"bfloat16\" rounds them\n";
  }
  const PlannedJob job{config, model, known, memory, device, speed, ranks, source_is_bfloat16};
  RoundSeconds total;
  for (std::size_t i = 0; i < config.rounds.size(); ++i) {
    text += describe_round(job, i, total);
  }
  const bool all_rounds =
      known.count || std::ranges::all_of(config.rounds, [](const RoundSettings& round) {
        return round.steps.has_value();
      });
  if (all_rounds) {
    text += fmt::format("time, estimated, all rounds: at most {}, evaluation not counted\n",
                        duration_text(total.generate + total.train));
  }
  return text;
}

DeviceRows rows_on_device(const MemoryPlan& plan) {
  if (plan.device == Device::cpu) {
    return {};
  }
  DeviceRows rows;
  rows.generation = {{"packed weights and work space", plan.decoding},
                     {"key/value cache", plan.cache},
                     {"products", plan.products}};
  if (plan.sharding.offload) {
    rows.training = {{"copies of weights and gradients", plan.copies}};
  } else {
    rows.training = {{"weights", plan.state.weights},
                     {"gradients", plan.state.gradients},
                     {"optimizer", plan.state.optimizer},
                     {"communication", plan.state.communication},
                     {"teacher", plan.state.teacher}};
  }
  rows.training.emplace_back("activations", plan.activations);
  rows.training.emplace_back("vocabulary loss", plan.loss);
  rows.training.emplace_back("checks", plan.probe.decoding);
  rows.training.emplace_back("products", plan.products);
  return rows;
}

std::string describe_device_plan(const JobConfig& config, int ranks, const KnownDevice& device) {
  return describe_plan(config, {ranks, std::min(ranks, kDevicesPerNode)}, Device::cuda,
                       sheet_speed(device, config.model.decode_weights, config.sharding().compute,
                                   ranks, ranks_of_copy(ranks, config.train.shard_ranks)),
                       &device);
}

}  // namespace jforge
