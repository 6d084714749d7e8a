#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/hf_model.h"
#include "checkpoints/tokenizer_fit.h"
#include "coordinator/run_journal.h"
#include "data/prompts/prompt_store.h"
#include "data/trajectories/trajectory_store.h"
#include "launch/commands/commands.h"
#include "launch/commands/loaded_model.h"
#include "workers/model_state.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

enum class Artefact { prompts, trajectories, checkpoint, model, run };

bool holds_shards(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with("lease-")) {
      return true;
    }
  }
  return false;
}

Artefact kind_of(const fs::path& path) {
  if (!fs::exists(path)) {
    throw DataError(path.string() + " does not exist");
  }
  if (fs::is_regular_file(path)) {
    return Artefact::prompts;
  }
  if (fs::exists(path / "run.json")) {
    return Artefact::run;
  }
  // A checkpoint that lost its manifest is still looked at as one, so that the answer says what is
  // wrong with it.
  const bool named_like_a_checkpoint = path.filename().string().find("-step-") != std::string::npos;
  if (fs::exists(path / kManifestName) || named_like_a_checkpoint) {
    return Artefact::checkpoint;
  }
  if (fs::exists(path / "config.json")) {
    return Artefact::model;
  }
  if (holds_shards(path)) {
    return Artefact::trajectories;
  }
  throw DataError(path.string() +
                  " is no prompt store, trajectory store, checkpoint, model or run directory");
}

void verify_trajectories(const fs::path& path) {
  const TrajectoryStore store = TrajectoryStore::open(path);
  store.verify();
  fmt::print("{}: {} trajectories in {} shards hold, digest {}\n", path.string(), store.size(),
             store.shards().size(), store.store_digest());
}

void verify_prompts(const fs::path& path) {
  const PromptStore store = PromptStore::open(path);
  store.verify();
  fmt::print("{}: {} prompts hold, digest {}\n", path.string(), store.size(), store.digest());
}

void verify_checkpoint(const fs::path& path) {
  const Checkpoint checkpoint = open_checkpoint(path);
  fmt::print("{}: {} shards hold (round {}, step {})\n", path.string(),
             checkpoint.manifest.shards.size(), checkpoint.manifest.state.round,
             checkpoint.manifest.state.step);
}

void verify_model(const fs::path& path) {
  const LoadedModel model(path, DeviceChoice::cpu);
  if (BytePairTokenizer::present(path)) {
    expect_tokenizer_fits(path, BytePairTokenizer::load(path), model.config);
  }
  fmt::print("{}: {} parameters load\n", path.string(), model.table.parameter_count());
}

void verify_run(const fs::path& path) {
  const RunLayout layout(path);
  if (fs::exists(layout.prompts())) {
    verify_prompts(layout.prompts());
  }
  for (std::int32_t round = 1; fs::exists(layout.trajectories(round)); ++round) {
    verify_trajectories(layout.trajectories(round));
  }
  // What a killed job left unfinished was never committed: it is named, and no damage to the run.
  for (const CheckpointDirectory& directory : list_checkpoint_directories(layout.checkpoints())) {
    if (fs::exists(directory.path / kManifestName)) {
      verify_checkpoint(directory.path);
    } else {
      fmt::print("{}: no manifest, not a checkpoint; ignored\n", directory.path.string());
    }
  }
  if (fs::exists(layout.directory() / "export.json")) {
    verify_model(layout.model());
  } else if (fs::exists(layout.model())) {
    fmt::print("{}: the export was not finished; ignored\n", layout.model().string());
  }
}

void inspect_prompts(const fs::path& path) {
  const PromptStore store = PromptStore::open(path, SealCheck::size);
  std::int64_t tokens = 0;
  std::int64_t longest = 0;
  for (PromptId id = 0; id < store.size(); ++id) {
    tokens += store.length(id);
    longest = std::max(longest, store.length(id));
  }
  fmt::print(
      "prompt store {}\n  prompts {}, tokens {}, longest {}\n  digest {}, identity {}\n  import "
      "{}\n",
      path.string(), store.size(), tokens, longest, store.digest(), store.identity(),
      store.report());
}

void inspect_trajectories(const fs::path& path) {
  const TrajectoryStore store = TrajectoryStore::open(path, SealCheck::size);
  std::int64_t tokens = 0;
  std::int64_t forwards = 0;
  std::int64_t stopped = 0;
  for (const PromptId id : store.prompt_ids()) {
    const Trajectory trajectory = store.read(id);
    tokens += static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
    forwards += trajectory.forwards;
    stopped += trajectory.stop == StopReason::eos ? 1 : 0;
  }
  fmt::print("trajectories {}\n  records {} in {} shards, {} damaged\n", path.string(),
             store.size(), store.shards().size(), store.damaged().size());
  fmt::print("  tokens {}, forwards {}, TPF {:.3f}, ended by end of sequence {}\n  digest {}\n",
             tokens, forwards,
             static_cast<double>(tokens) / static_cast<double>(std::max<std::int64_t>(1, forwards)),
             stopped, store.store_digest());
  for (const DamagedShard& shard : store.damaged()) {
    fmt::print("  damaged {}: {}\n", shard.path.string(), shard.reason);
  }
}

void inspect_checkpoint(const fs::path& path) {
  const CheckpointManifest manifest = read_manifest(path);
  std::uint64_t bytes = 0;
  for (const CheckpointShard& shard : manifest.shards) {
    bytes += shard.bytes;
  }
  fmt::print(
      "checkpoint {}\n  round {}, step {}, phase {}, optimizer updates {}\n  {} ranks, {} tensors, "
      "{:.1f} MB{}\n",
      path.string(), manifest.state.round, manifest.state.step, manifest.state.phase,
      manifest.state.optimizer_updates, manifest.world_size, manifest.tensors.size(),
      static_cast<double>(bytes) / 1e6, manifest.has_moments ? "" : " (weights only)");
  fmt::print("  cursors {}\n", manifest.state.cursors);
  for (const auto& [key, value] : manifest.state.identity) {
    fmt::print("  {} = {}\n", key, value);
  }
}

void inspect_model(const fs::path& path) {
  const TransformerConfig config = read_hf_config(path);
  const ParameterTable table(config, 1);
  fmt::print(
      "model {}\n  {} parameters: {} layers, hidden {}, intermediate {}, heads {} ({} key/value), "
      "vocabulary {}{}\n",
      path.string(), table.parameter_count(), config.num_layers, config.hidden_size,
      config.intermediate_size, config.num_heads, config.num_kv_heads, config.vocabulary_size,
      config.tie_word_embeddings ? ", tied head" : "");
  fmt::print("  end of sequence {}, positions {}, rope theta {}\n", fmt::join(config.eos_ids, " "),
             config.max_position_embeddings, config.rope_theta);
}

void inspect_run(const fs::path& path) {
  fmt::print("run {}\n{}\n", path.string(), read_run_status(path).dump(2));
  const RunLayout layout(path);
  if (fs::exists(layout.prompts())) {
    inspect_prompts(layout.prompts());
  }
  for (std::int32_t round = 1; fs::exists(layout.trajectories(round)); ++round) {
    inspect_trajectories(layout.trajectories(round));
  }
  for (const CheckpointDirectory& directory : list_checkpoint_directories(layout.checkpoints())) {
    fmt::print(
        "checkpoint {}{}\n", directory.path.filename().string(),
        fs::exists(directory.path / kManifestName) ? "" : " (no manifest: not a checkpoint)");
  }
}

void dispatch(const fs::path& path, const std::function<void(const fs::path&)> (&actions)[5]) {
  actions[static_cast<std::size_t>(kind_of(path))](path);
}

}  // namespace

ExitCode verify_command(const fs::path& path) {
  dispatch(path,
           {verify_prompts, verify_trajectories, verify_checkpoint, verify_model, verify_run});
  return ExitCode::ok;
}

ExitCode inspect_command(const fs::path& path) {
  dispatch(path,
           {inspect_prompts, inspect_trajectories, inspect_checkpoint, inspect_model, inspect_run});
  return ExitCode::ok;
}

ExitCode export_command(const ExportOptions& options) {
  if (options.dtype != "bfloat16" && options.dtype != "float32") {
    throw ConfigError("--dtype " + options.dtype + ": expected bfloat16 | float32");
  }
  const Checkpoint checkpoint = open_checkpoint(options.checkpoint);
  fs::path source = options.source;
  if (source.empty()) {
    const auto cursors = nlohmann::json::parse(checkpoint.manifest.state.cursors, nullptr, false);
    if (!cursors.is_object() || !cursors.contains("model_source")) {
      throw ConfigError(
          "the checkpoint does not say which model it came from; name it with --source");
    }
    source = cursors["model_source"].get<std::string>();
  }
  MemoryAccount account("export");
  ModelState model(source, 1, account);
  model.load_checkpoint(checkpoint);
  export_hf_model(source, options.out, model.config(), model.table(), model.weights(),
                  options.dtype == "bfloat16" ? DType::bfloat16 : DType::float32);
  fmt::print("{}: {} parameters in {}\n", options.out.string(), model.table().parameter_count(),
             options.dtype);
  return ExitCode::ok;
}

}  // namespace jforge
