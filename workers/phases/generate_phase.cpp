#include "workers/phases/generate_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "checkpoints/tokenizer_fit.h"
#include "data/trajectories/shard_index.h"
#include "data/trajectories/trajectory_reader.h"
#include "data/trajectories/trajectory_writer.h"
#include "model/transformer/cache_pages.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"
#include "runtime/read_file.h"
#include "runtime/stop_signal.h"
#include "runtime/text_seal.h"
#include "workers/generate/lease_writer.h"
#include "workers/generate/leased_generation.h"
#include "workers/generate/trajectory_generator.h"
#include "workers/protocol/control_channel.h"
#include "workers/trajectory_identity.h"

namespace jforge {

namespace {

constexpr const char* kWaitPhase = "wait for the other ranks";
/// Time between commits of what is finished of open leases: a quarter of the time so far, within
/// these bounds. A kill loses no more; a long run writes few more shards than leases.
constexpr std::chrono::seconds kMinKept{5};
constexpr std::chrono::seconds kMaxKept{60};

GenerateOptions generate_options(const JobConfig& config, std::int32_t round,
                                 const TransformerConfig& model) {
  GenerateOptions options;
  options.method = config.generate.method;
  options.block_size = config.rounds[static_cast<std::size_t>(round - 1)].block_size;
  options.max_new_tokens = config.generate.max_new_tokens;
  options.seed = config.run.seed;
  options.round = static_cast<std::uint64_t>(round);
  options.eos_ids = model.eos_ids;
  options.stored_states = config.generate.store_states;
  options.schedule = config.noise_schedule(round);
  return options;
}

/// Part K numbers its leases from K times as many, so that its shards fit beside the others'.
constexpr LeaseId kLeasesOfPart = 1'000'000;

/// Commits as a shard those of the trajectories that no other attempt commits.
/// Runs on a thread of its own.
void commit_lease(ControlChannel& control, const std::filesystem::path& directory,
                  ShardIdentity identity, const Lease& finished,
                  const std::vector<Trajectory>& trajectories, ShardIndexLog& index) {
  const Lease lease = control.request_commit(finished);
  if (lease.prompts.empty()) {
    return;
  }
  identity.lease = lease.id;
  identity.attempt = lease.attempt;
  identity.prompt_ids = lease.prompts;
  TrajectoryWriter writer(directory, identity);
  for (const Trajectory& trajectory : trajectories) {
    if (std::ranges::find(lease.prompts, trajectory.prompt_id) != lease.prompts.end()) {
      writer.append(trajectory);
    }
  }
  writer.finish();
  fault_point("generate.commit");
  commit_shard(directory, lease.id, lease.attempt, identity.rank);
  const ShardInfo info = writer.info();
  index.append(info);
  control.commit_done(lease, info.totals.block_tokens, info.totals.forwards);
}

/// Tokens of a block per forward. Nothing for method "parallel", whose forwards serve many blocks
/// at once and say nothing about the model.
std::optional<double> block_tpf(GenerationMethod method, const DecodingCost& cost) {
  return method == GenerationMethod::parallel ? std::nullopt : cost.tokens_per_forward();
}

void log_counts(Rank rank, const GenerationCounts& counts, GenerationMethod method) {
  const std::optional<double> tpf = block_tpf(method, counts.cost_of_blocks());
  log_info("rank {}: {} prompts, {} tokens in blocks{}, {:.0f} tokens/s", rank, counts.prompts,
           counts.block_tokens, tpf ? fmt::format(", block TPF {:.2f}", *tpf) : "",
           static_cast<double>(counts.block_tokens) /
               std::max(1e-9, counts.decoder.decode_seconds + counts.decoder.prefill_seconds));
}

/// Collective. Warns by the answers that all ranks generated in this call.
void warn_of_cut_answers(const Communicator& comm, std::int32_t round, const AnswerEnds& ends,
                         std::int64_t max_new_tokens) {
  std::array sums{ends.answers, ends.cut};
  all_reduce_sum(comm, std::span<std::int64_t>(sums));
  const auto warning =
      warning_of_cut_answers(fmt::format("generate round {}", round), {sums[0], sums[1]},
                             "generate.max_new_tokens", max_new_tokens);
  if (warning && comm.rank() == 0) {
    log_warn("{}", *warning);
  }
}

/// Reads a shard, or only the index's line of it. Lists it if it is damaged or stale.
std::optional<ShardInfo> fitting_shard(const std::filesystem::path& path, const ShardIndex& index,
                                       const std::string& expected, OpenPrompts& open) {
  try {
    std::optional<ShardInfo> shard = index.find(path);
    const bool remembered = shard.has_value();
    if (!remembered) {
      shard = TrajectoryReader(path).info();
    }
    if (shard->identity.identity != expected) {
      open.stale.push_back(path);
      return std::nullopt;
    }
    // A damaged index is written again as a whole.
    if (path.parent_path() == open.directory && (!remembered || !open.index_damage.empty())) {
      open.not_remembered.push_back(*shard);
    }
    return shard;
  } catch (const DataError& error) {
    open.damaged.push_back({path, error.what()});
    return std::nullopt;
  }
}

}  // namespace

OpenPrompts GeneratePhase::open_prompts(std::int32_t round) const {
  const std::string expected =
      trajectory_identity(identity_, round, weights_.generator_origin(round));
  OpenPrompts open;
  open.directory = layout_.trajectories(round);
  const ShardIndex index = ShardIndex::read(open.directory);
  open.index_damage = index.damage();
  const LeaseId series = config_.part.second == 1 ? 0 : config_.part.first;
  open.next_lease = series * kLeasesOfPart;
  std::vector<ShardInfo> fit;
  std::set<std::filesystem::path> names;
  for (const auto& [lease, path] : list_committed_shards(open.directory)) {
    if (lease / kLeasesOfPart == series) {
      open.next_lease = std::max(open.next_lease, lease + 1);
    }
    names.insert(path.filename());
    if (auto shard = fitting_shard(path, index, expected, open)) {
      fit.push_back(*std::move(shard));
    }
  }
  TrajectoryStore done = TrajectoryStore::of(fit);
  std::set<PromptId> of_parts;
  std::error_code no_parts;
  for (const auto& part : std::filesystem::directory_iterator(layout_.parts(), no_parts)) {
    const std::filesystem::path directory = RunLayout(part.path()).trajectories(round);
    const ShardIndex index_of_part = ShardIndex::read(directory);
    for (const auto& [lease, path] : list_committed_shards(directory)) {
      if (names.contains(path.filename())) {
        continue;  // Taken by an earlier start.
      }
      auto shard = fitting_shard(path, index_of_part, expected, open);
      const auto known = [&](PromptId id) { return done.contains(id) || of_parts.contains(id); };
      // The whole job, or a part of another division, may have generated a prompt, too.
      if (shard && std::ranges::none_of(shard->prompt_ids, known)) {
        names.insert(path.filename());
        of_parts.insert(shard->prompt_ids.begin(), shard->prompt_ids.end());
        open.of_parts.push_back(*shard);
        fit.push_back(*std::move(shard));
      }
    }
  }
  if (!open.of_parts.empty()) {
    done = TrajectoryStore::of(std::move(fit));
  }
  const PromptStore prompts = PromptStore::open(layout_.prompts());
  for (const PromptId id : config_.prompts_of_round(round, prompts.size())) {
    if (!done.contains(id)) {
      open.prompts.push_back({id, prompts.length(id)});
    }
  }
  return open;
}

void set_aside(const OpenPrompts& open) {
  for (const std::string& damage : open.index_damage) {
    log_warn("{}; the shards that it listed are read again", damage);
  }
  if (!open.index_damage.empty()) {
    ShardIndex::forget(open.directory);
  }
  std::vector<ShardInfo> to_remember = open.not_remembered;
  if (!open.of_parts.empty()) {
    make_directory(open.directory);
    log_info("takes {} shards of parts", open.of_parts.size());
  }
  for (ShardInfo shard : open.of_parts) {
    const std::filesystem::path own = open.directory / shard.path.filename();
    std::error_code no_link;  // Some file systems link within a folder alone.
    std::filesystem::create_hard_link(shard.path, own, no_link);
    if (no_link) {
      publish_file(own, read_file(shard.path));
    }
    shard.path = own;
    to_remember.push_back(std::move(shard));
  }
  if (!to_remember.empty()) {
    sync_directory(open.directory);
    ShardIndexLog log(open.directory, 0);
    for (const ShardInfo& shard : to_remember) {
      log.append(shard);
    }
  }
  for (const DamagedShard& shard : open.damaged) {
    log_warn("{} is damaged and is set aside; its prompts are generated again: {}",
             shard.path.string(), shard.reason);
    std::filesystem::rename(shard.path, shard.path.string() + ".damaged");
  }
  for (const std::filesystem::path& path : open.stale) {
    std::filesystem::rename(path, path.string() + ".stale");
  }
  if (!open.stale.empty()) {
    log_warn(
        "{} shards of {} were generated by another configuration or model; they are set aside as "
        "*.stale and their prompts are generated again",
        open.stale.size(), open.stale.front().parent_path().string());
  }
}

bool GeneratePhase::run(std::int32_t round) {
  services_.clock.enter("generate round " + std::to_string(round));
  bool stop = agree(services_.comm, stop_requested(), [&] {
    if (services_.comm.rank() == 0) {
      make_directory(layout_.trajectories(round));
      sweep_temporaries(layout_.trajectories(round));
      // The old report is of other trajectories, and a stop may come before the new one is written.
      std::filesystem::remove(layout_.generation_report(round));
    }
  });
  bool drained = false;
  AnswerEnds ends;
  if (!stop) {
    drained = generate_leases(round, weights_.generator(round), ends);
    // Rank 0 opens every shard while the others wait.
    services_.clock.enter("generation report");
    warn_of_cut_answers(services_.comm, round, ends, config_.generate.max_new_tokens);
    stop = agree(services_.comm, !drained || stop_requested(), [&] {
      if (services_.comm.rank() == 0 && drained) {
        write_report(round);
      }
    });
  }
  return !stop;
}

// Sequences in the batch. If prompts are few, every rank gets its share.
std::int32_t GeneratePhase::places(std::int32_t round, std::int64_t num_prompts) const {
  const auto prompts =
      static_cast<std::int64_t>(config_.prompts_of_round(round, num_prompts).size());
  const std::int64_t share = (prompts + services_.comm.size() - 1) / services_.comm.size();
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(share, 1, config_.generate.batch_prompts));
}

InferenceTransformer::Options GeneratePhase::inference_options(
    const GenerateOptions& options, const PromptStore& prompts,
    const TransformerConfig& model) const {
  const std::int64_t branch_rows = options.required_branch_rows();
  BatchPages batch(options.batch_prompts);
  for (PromptId id = 0; id < prompts.size(); ++id) {
    batch.add(cache_pages(options.required_positions(prompts.length(id)), branch_rows));
  }
  const WeightStorage weights = config_.model.decode_weights;
  const RoundSettings& round = config_.rounds[static_cast<std::size_t>(options.round - 1)];
  return {.num_slots = options.batch_prompts,
          .slot_capacity = static_cast<std::int32_t>(
              config_.required_positions(round, prompts.longest(), model)),
          .branch_rows = static_cast<std::int32_t>(branch_rows),
          .cache_pages = config_.generate.cache_pages(
              model, cache_type(weights, services_.kernels.device()), batch),
          .weights = weights};
}

// Collective. Generates leases until all are committed; returns false if told to stop.
bool GeneratePhase::generate_leases(std::int32_t round, const ModelShard& model, AnswerEnds& ends) {
  MemoryAccount account("generation");
  bool drained = false;
  {
    GenerateOptions options = generate_options(config_, round, model.config());
    std::optional<PromptStore> prompts;
    std::optional<InferenceTransformer> inference;
    model.gather([&](const ParameterReader& read) {
      prompts = PromptStore::open(layout_.prompts());
      options.batch_prompts = places(round, prompts->size());
      inference.emplace(model.config(), model.table(), read, services_.kernels, account,
                        inference_options(options, *prompts, model.config()));
    });
    static_cast<void>(agree(services_.comm, false, [&] {
      try {
        TrajectoryGenerator generator(*inference, options);
        drained = generate_with(generator, round, *prompts, model.config());
        const GenerationCounts& counts = generator.counts();
        log_counts(services_.comm.rank(), counts, config_.generate.method);
        ends = {counts.prompts, counts.cut_answers};
      } catch (...) {
        // Otherwise the other ranks would wait until this rank's leases expire.
        services_.control.request_lease({round, true, false});
        services_.clock.enter(kWaitPhase);
        throw;
      }
      // Until the other ranks learn of a failure or a stop, their progress counts as progress of a
      // rank that waits for them.
      services_.clock.enter(kWaitPhase);
    }));
  }
  services_.end_phase(account);
  return drained;
}

bool GeneratePhase::generate_with(TrajectoryGenerator& generator, std::int32_t round,
                                  const PromptStore& prompts, const TransformerConfig& model) {
  const auto show = [&] {
    if (services_.on_prompt) {
      services_.on_prompt();
    }
  };
  const auto show_progress = [&] {
    const GenerationCounts& counts = generator.counts();
    services_.clock.count(counts.decoder.tokens, counts.decoder.forwards);
    services_.clock.progress(counts.prompts);
    show();
  };
  const std::filesystem::path directory = layout_.trajectories(round);
  ShardIndexLog index(directory, services_.comm.rank());
  LeaseWriter writer([&](const Lease& lease, const std::vector<Trajectory>& trajectories) {
    ShardIdentity identity;
    identity.rank = services_.comm.rank();
    identity.round = round;
    identity.block_size = config_.rounds[static_cast<std::size_t>(round - 1)].block_size;
    identity.identity = trajectory_identity(identity_, round, weights_.round_origin());
    commit_lease(services_.control, directory, std::move(identity), lease, trajectories, index);
  });
  LeaseHooks hooks;
  hooks.request = [&](bool stop, bool idle) {
    fault_point("generate.lease");
    services_.control.request_lease({round, stop, idle});
  };
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
  hooks.commit = [&](Lease lease, std::vector<Trajectory> trajectories) {
    writer.add(std::move(lease), std::move(trajectories));
    show_progress();
  };
  hooks.before_idle = [&] { writer.finish(); };
  hooks.on_forward = show_progress;  // A long answer counts as progress before it ends.
  hooks.stop_requested = [&] {
    writer.rethrow_failure();
    return stop_requested(config_.run.stop_seconds);
  };
  using Clock = std::chrono::steady_clock;
  hooks.commit_due = [begin = Clock::now(), last = Clock::now()]() mutable {
    const Clock::time_point now = Clock::now();
    const bool due =
        now - last >= std::clamp<Clock::duration>((now - begin) / 4, kMinKept, kMaxKept);
    last = due ? now : last;
    return due;
  };
  const bool drained =
      LeasedGeneration(generator, std::move(hooks), config_.run.stop_seconds).run();
  writer.finish();
  if (!drained) {
    request_stop();
    if (generator.running() > 0) {
      log_info("stopped: {} answers were not finished and are dropped", generator.running());
    }
  }
  return drained;
}

void GeneratePhase::ensure_report(std::int32_t round) const {
  if (services_.comm.rank() != 0) {
    return;
  }
  const std::filesystem::path path = layout_.generation_report(round);
  try {
    if (std::filesystem::exists(path)) {
      verify_sealed(path);
      return;
    }
  } catch (const DataError& error) {
    log_warn("{}; it is written again from the trajectories", error.what());
  }
  write_report(round);
}

void GeneratePhase::mend_reports() const {
  for (std::size_t round = 1; round <= config_.rounds.size(); ++round) {
    const std::filesystem::path path = layout_.generation_report(static_cast<std::int32_t>(round));
    if (!std::filesystem::exists(path)) {
      continue;
    }
    try {
      ensure_report(static_cast<std::int32_t>(round));
    } catch (const DataError& error) {
      log_warn("{}; {} is set aside as *.damaged", error.what(), path.string());
      std::filesystem::rename(path, path.string() + ".damaged");
    }
  }
}

void GeneratePhase::write_report(std::int32_t round) const {
  const std::vector<PromptId> prompts =
      config_.prompts_of_round(round, PromptStore::open(layout_.prompts()).size());
  const TrajectoryStore store =
      TrajectoryStore::open_complete(layout_.trajectories(round), prompts);
  const ShardTotals totals = store.totals();
  const std::optional<double> tpf =
      block_tpf(config_.generate.method, {.sequences = static_cast<std::int64_t>(store.size()),
                                          .tokens = totals.block_tokens,
                                          .forwards = totals.forwards});
  const nlohmann::json report = {
      {"round", round},
      {"block_size", config_.rounds[static_cast<std::size_t>(round - 1)].block_size},
      {"prompts", store.size()},
      {"tokens", totals.block_tokens},
      {"forwards", totals.forwards},
      {"block_tpf", tpf ? nlohmann::json(*tpf) : nlohmann::json(nullptr)},
      {"flipped_blocks", totals.flipped_blocks},
      {"ended_by_eos", totals.ended_by_eos},
      {"digest", store.store_digest()}};
  publish_file(layout_.generation_report(round), seal_json(report.dump(2) + "\n"));
}

}  // namespace jforge
