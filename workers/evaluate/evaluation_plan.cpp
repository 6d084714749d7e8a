#include "workers/evaluate/evaluation_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "checkpoints/drafter_files.h"
#include "checkpoints/tokenizer_fit.h"
#include "data/tokenizer/unicode.h"
#include "model/transformer/cache_pages.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "workers/evaluate/sandbox/sandbox.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

/// Raise if the meaning of records changes.
constexpr int kRecordVersion = 3;

const ModelUnderTest& checked(const EvaluateConfig& config, const ModelUnderTest& model) {
  config.validate();
  expect_model_name(model.name);
  return model;
}

/// Throws DataError if the model has fewer positions.
std::int64_t positions_of(const Problem& problem, const ProblemSet& set,
                          const SequenceDecoder& decoder, const TransformerConfig& model) {
  const std::int64_t positions = decoder.max_positions();
  if (std::cmp_greater_equal(problem.prompt.size(), model.max_position_embeddings)) {
    throw DataError(fmt::format(
        "problem {}: a prompt of {} tokens leaves no room for an answer, as the model has {} "
        "positions; leave the task out, or limit it to the problems before this one",
        problem.record.id, problem.prompt.size(), model.max_position_embeddings));
  }
  if (positions > model.max_position_embeddings) {
    throw DataError(fmt::format(
        "problem {}: a prompt of {} tokens and {} new ones need {} positions, the model has "
        "{}; lower evaluate.max_new_tokens",
        problem.record.id, problem.prompt.size(), set.max_new_tokens, positions,
        model.max_position_embeddings));
  }
  return positions;
}

/// Omits newer fields at their defaults, so that old samples stay valid.
Json architecture(const TransformerConfig& config) {
  Json root = {{"vocabulary_size", config.vocabulary_size},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_layers", config.num_layers},
               {"num_heads", config.num_heads},
               {"num_kv_heads", config.num_kv_heads},
               {"rms_norm_eps", config.rms_norm_eps},
               {"rope_theta", config.rope.theta},
               {"tied", config.tie_word_embeddings},
               {"eos_ids", config.eos_ids}};
  if (config.own_head_size) {
    root["head_size"] = *config.own_head_size;
  }
  if (!config.layers_without_rope.empty()) {
    root["layers_without_rope"] = config.layers_without_rope;
  }
  for (const auto& [key, value] : traits_of(config.family).multipliers) {
    root[key] = config.multipliers.*value;
  }
  if (const RotarySettings& rope = config.rope; rope.scaling != RotaryScaling::none) {
    root["rope_scaling"] = {static_cast<int>(rope.scaling), rope.factor, rope.low_frequency_factor,
                            rope.high_frequency_factor, rope.original_positions};
  }
  return root;
}

std::string plans_to_text(const std::vector<MethodRun>& runs) {
  Json plans = Json::array();
  for (const MethodRun& run : runs) {
    plans.push_back({{"current", run.current}, {"attempt", run.attempt}, {"done", run.done}});
  }
  return plans.dump();
}

void take_plans(const std::string& text, std::vector<MethodRun>& runs) {
  const Json plans = parse_bounded_json<Json>(text, "rank 0's plans");
  expect(plans.size() == runs.size(), "rank 0 evaluates other methods");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i].current = plans[i].at("current").get<bool>();
    runs[i].attempt = json_integer<std::int64_t>(plans[i].at("attempt"));
    runs[i].done = plans[i].at("done").get<std::vector<PromptId>>();
  }
}

}  // namespace

std::string hash_of_weights(const ModelUnderTest& model) {
  std::uint64_t hash = 0;
  std::vector<float> widened;
  for (const ParameterEntry& entry : model.table.entries()) {
    const ConstTensorView stored = model.read(entry);
    std::span<const float> values;
    if (stored.dtype() == DType::float32) {
      values = stored.span<float>();
    } else {
      const auto rounded = stored.span<BFloat16>();
      widened.resize(rounded.size());
      std::ranges::transform(rounded, widened.begin(), to_float);
      values = widened;
    }
    hash = hash64(std::as_bytes(values), hash64(entry.name, hash));
  }
  return hash_hex(hash);
}

void expect_model_name(const std::string& name) {
  const bool controls = std::ranges::any_of(
      name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\x7F'; });
  if (controls || first_invalid_utf8(name)) {
    throw ConfigError(
        "the model's name holds a control character or is not UTF-8, so that no table can show it; "
        "name it with --name");
  }
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw ConfigError(fmt::format("\"{}\" cannot name a model in the evaluation's files", name));
  }
}

void expect_evaluable(const EvaluateConfig& config, const TransformerConfig& model,
                      const std::filesystem::path& model_directory,
                      const ChatTemplateOptions& chat_template, bool programs) {
  TaskEncoder encoder(model_directory, chat_template);
  bool runs_code = false;
  for (const std::string& entry : config.tasks) {
    const ProblemSet set = load_problem_set(entry, config, encoder, model.vocabulary_size);
    runs_code = runs_code || set.task->runs_code();
    for (const std::string& name : config.methods) {
      constexpr std::uint64_t kAnySeed = 0;  // irrelevant to positions
      const DecodingMethod method = make_decoding_method(name, config.decoding, kAnySeed);
      for (const Problem& problem : set.problems) {
        const auto decoder = method.make(set.request(problem.index, model.eos_ids));
        static_cast<void>(positions_of(problem, set, *decoder, model));
      }
    }
  }
  if (encoder.chat_template()) {
    if (const auto problem =
            unstopped_turns(encoder.tokenizer(), *encoder.chat_template(), model)) {
      log_warn("{}", *problem);
    }
  }
  if (runs_code && programs) {
    const Sandbox sandbox(SandboxOptions{});
  }
}

EvaluationPlan::EvaluationPlan(const EvaluateConfig& config, std::vector<DecodingMethod> methods,
                               const ModelUnderTest& model, const EvaluationContext& context,
                               const std::filesystem::path& model_directory)
    : model_(checked(config, model)),
      methods_(std::move(methods)),
      encoder_(model.directory, context.chat_template),
      bfloat16_sums_(context.kernels.bfloat16_sums()) {
  for (const std::string& entry : config.tasks) {
    sets_.push_back(load_problem_set(entry, config, encoder_, model.config.vocabulary_size));
    check_capacity(sets_.back());
  }
  weights_hash_ = hash_of_weights(model);
  for (const DecodingMethod& method : methods_) {
    const DrafterSource* const adapter =
        drafter_for(method.name, method.need, model.drafter, model.directory);
    if (adapter != nullptr) {
      adapter_ = adapter;
      drafter_hash_ = model.drafter->hash();
    }
  }
  make_runs(model_directory);
}

void EvaluationPlan::check_capacity(const ProblemSet& set) {
  for (const DecodingMethod& method : methods_) {
    std::vector<std::int64_t>& pages = pages_.emplace_back();
    for (const Problem& problem : set.problems) {
      const auto decoder = method.make(set.request(problem.index, model_.config.eos_ids));
      const std::int64_t positions = positions_of(problem, set, *decoder, model_.config);
      capacity_ = std::max(capacity_, positions);
      branch_rows_ = std::max(branch_rows_, decoder->max_branch_rows());
      pages.insert(pages.end(), static_cast<std::size_t>(method.samples_per_problem),
                   cache_pages(positions, decoder->max_branch_rows()));
    }
  }
}

void EvaluationPlan::make_runs(const std::filesystem::path& model_directory) {
  std::set<std::string> stems;
  for (const ProblemSet& set : sets_) {
    for (const DecodingMethod& method : methods_) {
      runs_.push_back({set, method, settings_of(set, method),
                       SampleFiles(model_directory, set.choice.label, method.label)});
      if (!stems.insert(runs_.back().files.stem()).second) {
        throw ConfigError(fmt::format("{} and {} would write the same file twice: {}",
                                      set.choice.label, method.label,
                                      runs_.back().files.merged().filename().string()));
      }
    }
  }
}

std::string EvaluationPlan::settings_of(const ProblemSet& set, const DecodingMethod& method) const {
  Json settings{{"version", kRecordVersion},
                {"weights", weights_hash_},
                {"architecture", architecture(model_.config)},
                {"tokenizer", tokenizer().content_hash()},
                {"task", set.task->version()},
                {"problems", set.hash},
                {"max_new_tokens", set.max_new_tokens},
                {"method", method.name},
                {"samples_per_problem", method.samples_per_problem},
                {"method_settings", method.settings}};
  // Omitted if empty, so that old samples stay valid.
  if (method.needs_drafter()) {
    settings["drafter"] = drafter_hash_;
  }
  if (!set.stop_tokens.empty()) {
    settings["stop_tokens"] = set.stop_tokens;
  }
  if (model_.decode_weights == WeightStorage::int8) {
    settings["int8_weights"] = true;
  } else if (rounds(model_.decode_weights)) {
    settings["rounded_weights"] = true;
  }
  if (model_.decode_weights == WeightStorage::bfloat16_arithmetic) {
    settings["rounded_input"] = true;
    if (bfloat16_sums_ == BFloat16Sums::groups) {
      settings["bfloat16_sums"] = "groups";
    }
  }
  return hash_hex(hash64(settings.dump()));
}

void EvaluationPlan::expect_same(const Communicator& comm) const {
  std::string mine = weights_hash_;
  for (const ProblemSet& set : sets_) {
    mine += " " + set.hash;
  }
  const std::string roots = broadcast_text(comm, mine, 0);
  together(comm, [&] {
    if (mine != roots) {
      throw DataError(
          "evaluation: this rank has other weights, tokenizer or benchmark files than rank 0; all "
          "ranks must see the same directories");
    }
  });
}

bool EvaluationPlan::find_open_work(const Communicator& comm, const EvaluationStore& store,
                                    bool refuse_other_weights) {
  std::string text;
  const bool stop = agree(comm, stop_requested(), [&] {
    if (comm.rank() == 0) {
      store.claim(weights_hash_, model_.directory, refuse_other_weights);
      for (MethodRun& run : runs_) {
        store.plan(run);
      }
      text = plans_to_text(runs_);
    }
  });
  if (!stop) {
    take_plans(broadcast_text(comm, text, 0), runs_);
  }
  return stop;
}

std::unique_ptr<InferenceTransformer> EvaluationPlan::make_transformer(KernelSet& kernels,
                                                                       MemoryAccount& account,
                                                                       std::int32_t slots) const {
  // At least one full slot, even if no request fills it.
  std::int64_t most = cache_pages(capacity_, branch_rows_);
  for (const std::vector<std::int64_t>& run : pages_) {
    BatchPages batch(slots);
    std::ranges::for_each(run, [&](std::int64_t pages) { batch.add(pages); });
    most = std::max(most, batch.most());
  }
  return std::make_unique<InferenceTransformer>(
      model_.config, model_.table, model_.read, kernels, account,
      InferenceTransformer::Options{.num_slots = slots,
                                    .slot_capacity = static_cast<std::int32_t>(capacity_),
                                    .branch_rows = static_cast<std::int32_t>(branch_rows_),
                                    .cache_pages = most,
                                    .weights = model_.decode_weights,
                                    .adapter = adapter_});
}

std::vector<std::vector<const MethodRun*>> EvaluationPlan::runs_by_task() const {
  std::vector<std::vector<const MethodRun*>> tasks;
  for (std::size_t begin = 0; begin < runs_.size(); begin += methods_.size()) {
    auto& task = tasks.emplace_back();
    for (std::size_t i = begin; i < begin + methods_.size(); ++i) {
      task.push_back(&runs_[i]);
    }
  }
  return tasks;
}

}  // namespace jforge
