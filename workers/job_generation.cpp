#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoints/tokenizer_fit.h"
#include "data/prompts/prompt_store.h"
#include "data/trajectories/trajectory_store.h"
#include "data/trajectories/trajectory_writer.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/generate/trajectory_generator.h"
#include "workers/job_worker.h"

namespace jforge {

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
        // Without this the others would wait until this rank's lease expires.
        services_.control.request_lease(round, true);
        throw;
      }
    });
    // Rank 0 reads every record while the others wait: no steps whose absence would mean a hang.
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

// One lease after another until all are committed; returns false when told to stop.
bool JobWorker::generate_leases(std::int32_t round) {
  MemoryAccount account("generation");
  bool drained = false;
  {
    ModelState& model = weights_after(round - 1);
    const PromptStore prompts = PromptStore::open(layout_.prompts());
    const RoundSettings& settings = config_.rounds[static_cast<std::size_t>(round - 1)];
    InferenceTransformer::Options inference_options;
    inference_options.num_slots = config_.generate.batch_prompts;
    inference_options.slot_capacity =
        static_cast<std::int32_t>(required_positions(round, prompts, model.config()));
    InferenceTransformer inference(model.config(), model.table(), model.weights(),
                                   services_.kernels, account, inference_options);
    GenerateOptions options;
    options.block_size = settings.block_size;
    options.max_new_tokens = config_.generate.max_new_tokens;
    options.seed = config_.run.seed;
    options.round = static_cast<std::uint64_t>(round);
    options.eos_ids = model.config().eos_ids;
    options.batch_prompts = config_.generate.batch_prompts;
    options.stored_states = config_.generate.store_states;
    options.schedule = config_.noise_schedule(round);
    TrajectoryGenerator generator(inference, options);
    const std::filesystem::path directory = layout_.trajectories(round);

    for (;;) {
      services_.control.request_lease(round, stop_requested());
      const LeaseReply reply = services_.control.take_lease();
      services_.clock.progress();
      if (reply.answer == LeaseAnswer::drained) {
        drained = true;
        break;
      }
      if (reply.answer == LeaseAnswer::stop) {
        request_stop();
        break;
      }
      if (reply.answer == LeaseAnswer::wait) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      std::vector<GeneratePrompt> work;
      for (const PromptId id : reply.lease.prompts) {
        work.push_back({id, prompts.tokens(id)});
        expect_ids_fit(fmt::format("{}: prompt {}", layout_.prompts().string(), id),
                       work.back().tokens, model.config());
      }
      const auto trajectories = generator.generate(
          work,
          [&](const GenerationCounts& counts) {
            services_.clock.progress(counts.prompts);
            fault_point("generate");
            if (services_.on_prompt) {
              services_.on_prompt();
            }
          },
          [&] {
            // Once per batched forward: a long answer is progress before it is finished.
            services_.clock.progress(generator.counts().prompts);
            return stop_requested();
          });
      if (!trajectories) {
        continue;  // stopped: the next request tells the coordinator
      }
      const Rank rank = services_.comm.rank();
      TrajectoryWriter writer(directory, {reply.lease.id,
                                          reply.lease.attempt,
                                          rank,
                                          round,
                                          settings.block_size,
                                          reply.lease.prompts,
                                          {}});
      std::int64_t tokens = 0;
      std::int64_t forwards = 0;
      for (const Trajectory& trajectory : *trajectories) {
        writer.append(trajectory);
        tokens += static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
        forwards += trajectory.forwards;
      }
      writer.finish();
      fault_point("generate.commit");
      if (services_.control.request_commit(reply.lease)) {
        commit_shard(directory, reply.lease.id, reply.lease.attempt, rank);
        services_.control.commit_done(reply.lease, tokens, forwards);
      } else {
        discard_shard(directory, reply.lease.id, reply.lease.attempt, rank);
      }
    }
    const GenerationCounts& counts = generator.counts();
    spdlog::info(
        "rank {}: {} prompts, {} tokens, {:.2f} tokens per forward, {:.0f} tokens/s",
        services_.comm.rank(), counts.prompts, counts.block_tokens,
        static_cast<double>(counts.block_tokens) /
            static_cast<double>(std::max<std::int64_t>(1, counts.forwards)),
        static_cast<double>(counts.block_tokens) /
            std::max(1e-9, counts.decoder.decode_seconds + counts.decoder.prefill_seconds));
  }
  expect_returned(account);
  return drained;
}

void JobWorker::write_generation_report(std::int32_t round) const {
  const std::vector<PromptId> prompts =
      prompts_of_round(round, PromptStore::open(layout_.prompts()).size());
  const TrajectoryStore store =
      TrajectoryStore::open_complete(layout_.trajectories(round), prompts, SealCheck::size);
  std::int64_t tokens = 0;
  std::int64_t forwards = 0;
  std::int64_t flipped = 0;
  for (const PromptId id : store.prompt_ids()) {
    const Trajectory trajectory = store.read(id);
    tokens += static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
    forwards += trajectory.forwards;
    flipped += trajectory.flipped_blocks;
  }
  const nlohmann::json report = {
      {"round", round},
      {"block_size", config_.rounds[static_cast<std::size_t>(round - 1)].block_size},
      {"prompts", store.size()},
      {"tokens", tokens},
      {"forwards", forwards},
      {"tpf",
       static_cast<double>(tokens) / static_cast<double>(std::max<std::int64_t>(1, forwards))},
      {"flipped_blocks", flipped},
      {"digest", store.store_digest()}};
  publish_file(layout_.generation_report(round), report.dump(2) + "\n");
}

}  // namespace jforge
