#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoints/tokenizer_fit.h"
#include "data/prompts/prompt_store.h"
#include "data/trajectories/trajectory_store.h"
#include "data/trajectories/trajectory_writer.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/generate/leased_generation.h"
#include "workers/generate/trajectory_generator.h"
#include "workers/job_worker.h"

namespace jforge {

namespace {

constexpr const char* kWaitPhase = "wait for the other ranks";

GenerateOptions generate_options(const JobConfig& config, std::int32_t round,
                                 const TransformerConfig& model) {
  GenerateOptions options;
  options.block_size = config.rounds[static_cast<std::size_t>(round - 1)].block_size;
  options.max_new_tokens = config.generate.max_new_tokens;
  options.seed = config.run.seed;
  options.round = static_cast<std::uint64_t>(round);
  options.eos_ids = model.eos_ids;
  options.stored_states = config.generate.store_states;
  options.schedule = config.noise_schedule(round);
  return options;
}

/// Writes the shard of a finished lease and commits it, or drops it when another attempt was
/// quicker.
void commit_lease(ControlChannel& control, const std::filesystem::path& directory,
                  const ShardIdentity& identity, const Lease& lease,
                  const std::vector<Trajectory>& trajectories) {
  TrajectoryWriter writer(directory, identity);
  std::int64_t tokens = 0;
  std::int64_t forwards = 0;
  for (const Trajectory& trajectory : trajectories) {
    writer.append(trajectory);
    tokens += static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
    forwards += trajectory.forwards;
  }
  writer.finish();
  fault_point("generate.commit");
  if (control.request_commit(lease)) {
    commit_shard(directory, lease.id, lease.attempt, identity.rank);
    control.commit_done(lease, tokens, forwards);
  } else {
    discard_shard(directory, lease.id, lease.attempt, identity.rank);
  }
}

void log_counts(Rank rank, const GenerationCounts& counts) {
  spdlog::info("rank {}: {} prompts, {} tokens, {:.2f} tokens per forward, {:.0f} tokens/s", rank,
               counts.prompts, counts.block_tokens,
               static_cast<double>(counts.block_tokens) /
                   static_cast<double>(std::max<std::int64_t>(1, counts.forwards)),
               static_cast<double>(counts.block_tokens) /
                   std::max(1e-9, counts.decoder.decode_seconds + counts.decoder.prefill_seconds));
}

}  // namespace

bool JobWorker::generate(std::int32_t round) {
  services_.clock.enter("generate round " + std::to_string(round), config_.run.hang_limit_seconds);
  bool stop = agree(services_.comm, stop_requested(), [&] {
    if (services_.comm.rank() == 0) {
      make_directory(layout_.trajectories(round));
      sweep_temporaries(layout_.trajectories(round));
    }
  });
  bool drained = false;
  if (!stop) {
    stop = agree(services_.comm, false, [&] {
      try {
        drained = generate_leases(round);
      } catch (...) {
        // Without this the others would wait until this rank's leases expire.
        services_.control.request_lease(round, true);
        services_.clock.enter(kWaitPhase, 0);
        throw;
      }
      // They learn of a failure or a stop at their next lease, which may take them longer than a
      // hang may last; a rank that waits is not the one that hangs.
      services_.clock.enter(kWaitPhase, 0);
    });
    // Rank 0 opens every shard while the others wait: no steps whose absence would mean a hang.
    services_.clock.enter("generation report", 0);
    stop = agree(services_.comm, !drained || stop_requested(), [&] {
      if (services_.comm.rank() == 0 && drained) {
        write_generation_report(round);
      }
    });
  }
  return !stop;
}

// Cache positions of the round's longest request; refuses before any work what could not be trained
// or positioned.
std::int64_t JobWorker::required_positions(std::int32_t round, const PromptStore& prompts,
                                           const TransformerConfig& model) const {
  const std::int32_t block_size = config_.rounds[static_cast<std::size_t>(round - 1)].block_size;
  const std::int64_t answer =
      (config_.generate.max_new_tokens + block_size - 1) / block_size * block_size;
  std::int64_t longest = 0;
  for (PromptId id = 0; id < prompts.size(); ++id) {
    longest = std::max(longest, prompts.length(id));
  }
  if (longest + answer > model.max_position_embeddings) {
    throw ConfigError(fmt::format(
        "the longest prompt has {} tokens and an answer up to {}, but the model has "
        "max_position_embeddings = {}; set prompts.max_prompt_tokens to {} or less",
        longest, answer, model.max_position_embeddings, model.max_position_embeddings - answer));
  }
  if (longest + 2 * answer > config_.train.tokens_per_rank) {
    throw ConfigError(
        fmt::format("the longest prompt has {} tokens and its sample may take {} rows, but "
                    "train.tokens_per_rank = {}; raise it, or set prompts.max_prompt_tokens",
                    longest, longest + 2 * answer, config_.train.tokens_per_rank));
  }
  return longest + answer;
}

// Places in the batch: when there are few prompts, every rank gets its share of them.
std::int32_t JobWorker::generation_places(std::int32_t round, std::int64_t num_prompts) const {
  const auto prompts = static_cast<std::int64_t>(prompts_of_round(round, num_prompts).size());
  const std::int64_t share = (prompts + services_.comm.size() - 1) / services_.comm.size();
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(share, 1, config_.generate.batch_prompts));
}

// Leases until all are committed; returns false when told to stop.
bool JobWorker::generate_leases(std::int32_t round) {
  MemoryAccount account("generation");
  bool drained = false;
  {
    ModelState& model = weights_after(round - 1);
    const PromptStore prompts = PromptStore::open(layout_.prompts());
    GenerateOptions options = generate_options(config_, round, model.config());
    options.batch_prompts = generation_places(round, prompts.size());
    InferenceTransformer::Options inference_options;
    inference_options.num_slots = options.batch_prompts;
    inference_options.slot_capacity =
        static_cast<std::int32_t>(required_positions(round, prompts, model.config()));
    InferenceTransformer inference(model.config(), model.table(), model.weights(),
                                   services_.kernels, account, inference_options);
    TrajectoryGenerator generator(inference, options);
    drained = generate_with(generator, round, prompts, model.config());
    log_counts(services_.comm.rank(), generator.counts());
  }
  expect_returned(account);
  return drained;
}

bool JobWorker::generate_with(TrajectoryGenerator& generator, std::int32_t round,
                              const PromptStore& prompts, const TransformerConfig& model) {
  const auto show = [&] {
    services_.clock.progress(generator.counts().prompts);
    if (services_.on_prompt) {
      services_.on_prompt();
    }
  };
  LeaseHooks hooks;
  hooks.request = [&](bool stop) { services_.control.request_lease(round, stop); };
  hooks.take = [&] {
    LeaseReply reply = services_.control.take_lease();
    show();
    return reply;
  };
  hooks.prompt = [&](PromptId id) {
    std::vector<TokenId> tokens = prompts.tokens(id);
    expect_ids_fit(fmt::format("{}: prompt {}", layout_.prompts().string(), id), tokens, model);
    return tokens;
  };
  hooks.commit = [&](const Lease& lease, std::vector<Trajectory> trajectories) {
    const ShardIdentity identity{lease.id,
                                 lease.attempt,
                                 services_.comm.rank(),
                                 round,
                                 config_.rounds[static_cast<std::size_t>(round - 1)].block_size,
                                 lease.prompts,
                                 trajectory_identity(round)};
    commit_lease(services_.control, layout_.trajectories(round), identity, lease, trajectories);
    show();
  };
  hooks.on_prompt = [&] {
    show();
    fault_point("generate");
  };
  hooks.stop_requested = [&] {
    // Once per batched forward: a long answer is progress before it is finished.
    show();
    return stop_requested();
  };
  const bool drained = LeasedGeneration(generator, std::move(hooks)).run();
  if (!drained) {
    request_stop();
  }
  return drained;
}

void JobWorker::ensure_generation_report(std::int32_t round) const {
  if (services_.comm.rank() == 0 && !std::filesystem::exists(layout_.generation_report(round))) {
    write_generation_report(round);
  }
}

void JobWorker::write_generation_report(std::int32_t round) const {
  const std::vector<PromptId> prompts =
      prompts_of_round(round, PromptStore::open(layout_.prompts()).size());
  const TrajectoryStore store =
      TrajectoryStore::open_complete(layout_.trajectories(round), prompts, SealCheck::size);
  const ShardTotals totals = store.totals();
  const nlohmann::json report = {
      {"round", round},
      {"block_size", config_.rounds[static_cast<std::size_t>(round - 1)].block_size},
      {"prompts", store.size()},
      {"tokens", totals.block_tokens},
      {"forwards", totals.forwards},
      {"tpf", static_cast<double>(totals.block_tokens) /
                  static_cast<double>(std::max<std::int64_t>(1, totals.forwards))},
      {"flipped_blocks", totals.flipped_blocks},
      {"digest", store.store_digest()}};
  publish_file(layout_.generation_report(round), report.dump(2) + "\n");
}

}  // namespace jforge
