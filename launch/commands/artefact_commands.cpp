#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/drafter_files.h"
#include "checkpoints/hf_model.h"
#include "coordinator/run_journal.h"
#include "data/prompts/prompt_store.h"
#include "data/trajectories/trajectory_store.h"
#include "launch/commands/artefact.h"
#include "launch/commands/commands.h"
#include "launch/config/bounded_toml.h"
#include "launch/config/field.h"
#include "model/decoding/sequence_decoder.h"
#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/tensor/bfloat16.h"
#include "workers/evaluate/evaluation_summary.h"
#include "workers/run_layout.h"

namespace jforge {

namespace {

namespace fs = std::filesystem;

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
  // By shard: the store keeps few files open, and leases are grouped by prompt length.
  for (const ShardInfo& shard : store.shards()) {
    for (const PromptId id : shard.prompt_ids) {
      const Trajectory trajectory = store.read(id);
      tokens += static_cast<std::int64_t>(trajectory.blocks.size()) * trajectory.block_size;
      forwards += trajectory.forwards;
      stopped += trajectory.stop == StopReason::eos ? 1 : 0;
    }
  }
  fmt::print("trajectories {}\n  records {} in {} shards, {} damaged\n", path.string(),
             store.size(), store.shards().size(), store.damaged().size());
  fmt::print(
      "  tokens {}, forwards {}, {:.3f} a forward (of generate.method parallel no figure of the "
      "model), ended by end of sequence {}\n  digest {}\n",
      tokens, forwards,
      DecodingCost{static_cast<std::int64_t>(store.size()), tokens, forwards}
          .tokens_per_forward()
          .value_or(0),
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

std::string describe(const DrafterShape& drafter) {
  if (const auto* const head = std::get_if<HeadShape>(&drafter)) {
    return fmt::format("{} layers that read layers {} of the model, mask token {}", head->layers,
                       fmt::join(head->features, " "), head->mask_token);
  }
  const auto& adapter = std::get<AdapterShape>(drafter);
  std::vector<std::string> targets;
  for (const auto& [weight, name] : kProjections) {
    if (std::ranges::count(adapter.targets, weight) > 0) {
      targets.emplace_back(name);
    }
  }
  return fmt::format("rank {}, alpha {}, targets {}", adapter.rank, adapter.alpha,
                     fmt::join(targets, " "));
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
             config.max_position_embeddings, config.rope.theta);
  if (const auto drafter = find_drafter(path, config)) {
    fmt::print("  drafter: {} parameters, {}\n", drafter->table().parameter_count(),
               describe(drafter->source().shape));
  }
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

/// Prints an overview; the report has the details, and `inspect A B` compares.
void inspect_evaluation(const fs::path& path) {
  for (const fs::path& directory : evaluation_directories(path)) {
    if (!fs::exists(directory / "summary.json")) {
      continue;
    }
    fmt::print("evaluation {}\n", directory.string());
    EvaluationSummary(directory).for_each(
        [](const EvaluationSummary::Place& place, const nlohmann::ordered_json& figures) {
          fmt::print("  {} {} {}: {} problems, accuracy {}, TPF {}\n", place.model, place.task,
                     place.method, figures.value("n", nlohmann::ordered_json()).dump(),
                     figures.value("accuracy", nlohmann::ordered_json()).dump(),
                     figures.value("tpf", nlohmann::ordered_json()).dump());
        });
  }
}

/// Returns nothing if no round trained the checkpoint.
std::optional<std::int32_t> trained_block_size(const CheckpointState& state) {
  const auto found = state.identity.find(fmt::format("rounds.{}.block_size", state.round));
  if (found == state.identity.end()) {
    return std::nullopt;
  }
  return std::stoi(found->second);
}

TemplateArguments trained_arguments(const CheckpointState& state) {
  constexpr const char* kKey = "prompts.template_arguments";
  TemplateArguments arguments;
  const auto found = state.identity.find(kKey);
  if (found == state.identity.end()) {
    return arguments;
  }
  const toml::table parsed = parse_bounded_toml("value = " + found->second, kKey);
  if (read_value(*parsed.get("value"), arguments)) {
    throw DataError(fmt::format("the checkpoint's {} is garbled: {}", kKey, found->second));
  }
  return arguments;
}

/// Returns the shape of the checkpoint's head.
HeadShape trained_head(const CheckpointManifest& manifest, const TransformerConfig& model) {
  std::vector<std::string> settings;
  for (const char* key :
       {"train.drafter_layers", "train.drafter_features", "train.drafter_mask_token"}) {
    const auto found = manifest.state.identity.find(key);
    if (found != manifest.state.identity.end()) {
      settings.push_back(fmt::format("{}={}", key, found->second));
    }
  }
  return completed(read_job_config("[[rounds]]", "the checkpoint", settings).train.head, model);
}

/// Returns the shape of the checkpoint's drafter; nothing if it holds a model.
std::optional<DrafterShape> trained_drafter(const CheckpointManifest& manifest,
                                            const TransformerConfig& model) {
  if (std::ranges::any_of(manifest.tensors,
                          [](const auto& one) { return one.name == kContextNorm; })) {
    return trained_head(manifest, model);
  }
  AdapterShape shape;
  shape.targets.clear();
  for (const auto& [weight, name] : kProjections) {
    const auto inner = std::ranges::find_if(
        manifest.tensors, [end = fmt::format(".{}.lora_A.weight", name)](const auto& one) {
          return one.name.ends_with(end);
        });
    if (inner != manifest.tensors.end()) {
      shape.rank = static_cast<std::int32_t>(inner->shape[0]);
      shape.targets.push_back(weight);
    }
  }
  if (shape.targets.empty()) {
    return std::nullopt;
  }
  const auto alpha = manifest.state.identity.find("train.drafter_alpha");
  if (alpha != manifest.state.identity.end()) {
    shape.alpha = std::stod(alpha->second);
  }
  return shape;
}

/// source + share · (checkpoint − source), tensor by tensor (Wortsman et al., "Robust fine-tuning
/// of zero-shot models", 2022).
class InterpolatedTensors {
 public:
  InterpolatedTensors(HfTensors& source, CheckpointTensors& checkpoint, double share)
      : source_(source), checkpoint_(checkpoint), share_(share) {}

  [[nodiscard]] std::span<const float> operator()(const ParameterEntry& entry) {
    const std::span<const float> to = checkpoint_(entry);
    const ConstTensorView from = source_.read(entry);
    expect(std::cmp_equal(from.elements(), to.size()), "tensors of one name differ in size");
    values_.resize(to.size());
    if (from.dtype() == DType::bfloat16) {
      interpolate(from.span<BFloat16>(), to);
    } else {
      interpolate(from.span<float>(), to);
    }
    return values_;
  }

 private:
  template <class Element>
  void interpolate(std::span<const Element> from, std::span<const float> to) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const double begin = to_float(from[i]);
      values_[i] = static_cast<float>(begin + share_ * (double{to[i]} - begin));
    }
  }
  static float to_float(float value) { return value; }
  static float to_float(BFloat16 value) { return jforge::to_float(value); }

  HfTensors& source_;
  CheckpointTensors& checkpoint_;
  double share_;
  std::vector<float> values_;
};

}  // namespace

ExitCode inspect_command(const fs::path& path) {
  switch (kind_of(path)) {
    case Artefact::prompts:
      inspect_prompts(path);
      break;
    case Artefact::trajectories:
      inspect_trajectories(path);
      break;
    case Artefact::checkpoint:
      inspect_checkpoint(path);
      break;
    case Artefact::model:
      inspect_model(path);
      break;
    case Artefact::evaluation:
      inspect_evaluation(path);
      break;
    case Artefact::run:
      inspect_run(path);
      break;
  }
  return ExitCode::ok;
}

ExitCode export_command(const ExportOptions& options) {
  // Also rejects NaN.
  if (!(options.interpolate >= 0 && options.interpolate <= 1)) {
    throw ConfigError("--interpolate must be from 0 to 1");
  }
  // It may hold the only copy of a model, or the source itself.
  std::error_code error;
  if (fs::exists(options.out, error) &&
      !(fs::is_directory(options.out, error) && fs::is_empty(options.out, error))) {
    throw ConfigError(options.out.string() +
                      ": exists already and is not an empty folder; name another one, or remove it "
                      "first");
  }
  const Checkpoint checkpoint = open_checkpoint(options.checkpoint);
  fs::path source = options.source;
  if (source.empty()) {
    const auto cursors = try_bounded_json(checkpoint.manifest.state.cursors);
    if (!cursors.is_object() || !cursors.contains("model_source")) {
      throw ConfigError(
          "the checkpoint does not say which model it came from; name it with --source");
    }
    source = cursors["model_source"].get<std::string>();
    if (!fs::is_directory(source)) {
      throw ConfigError(
          fmt::format("{}: the model that {} was trained from is not there; name it with --source",
                      source.string(), options.checkpoint.string()));
    }
  }
  MemoryAccount account("export");
  const TransformerConfig config = read_hf_config(source);
  const std::optional<DrafterShape> drafter = trained_drafter(checkpoint.manifest, config);
  const ParameterTable table =
      drafter ? ParameterTable(config, *drafter, 1) : ParameterTable(config, 1);
  if (drafter || options.interpolate < 1) {
    const Identity& trained_from = checkpoint.manifest.state.identity;
    const auto hash = trained_from.find("model.hash");
    if (hash != trained_from.end() && hash->second != hf_model_hash(source)) {
      throw DataError(fmt::format(
          "{}: not the model{} that {} was trained from; name that one with --source",
          source.string(), options.source.empty() ? " any more" : "", options.checkpoint.string()));
    }
  }
  CheckpointTensors tensors(checkpoint, table, account);
  const HfExportOptions written{
      .stored = options.dtype == "bfloat16" ? DType::bfloat16 : DType::float32,
      .jacobi_block_size = trained_block_size(checkpoint.manifest.state),
      .template_arguments = trained_arguments(checkpoint.manifest.state)};
  if (drafter) {
    if (options.interpolate < 1) {
      throw ConfigError(options.checkpoint.string() +
                        " holds a drafter, whose model stays as it is: --interpolate has no use");
    }
    export_with_drafter(source, options.out, written, [&](const fs::path& folder) {
      write_drafter(folder, source, *drafter, written.jacobi_block_size.value_or(1), table,
                    std::ref(tensors));
    });
    fmt::print("{}: the model of {} with a drafter of {} parameters\n", options.out.string(),
               source.string(), table.parameter_count());
    return ExitCode::ok;
  }
  std::optional<HfTensors> begin;
  TensorValues values = std::ref(tensors);
  if (options.interpolate < 1) {
    begin.emplace(source, config, table);
    values = InterpolatedTensors(*begin, tensors, options.interpolate);
  }
  export_hf_model(source, options.out, config, table, values, written);
  fmt::print("{}: {} parameters in {}\n", options.out.string(), table.parameter_count(),
             options.dtype);
  return ExitCode::ok;
}

}  // namespace jforge
