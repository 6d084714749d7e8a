#include "workers/evaluate/tuning.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoints/drafter_files.h"
#include "checkpoints/jacobi_decoding.h"
#include "model/transformer/inference_transformer.h"
#include "runtime/bounded_json.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/comm/local_rank.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/log.h"
#include "runtime/stop_signal.h"
#include "runtime/text_seal.h"
#include "workers/evaluate/evaluation_plan.h"
#include "workers/evaluate/speed_measurement.h"
#include "workers/evaluate/sweep.h"

namespace jforge {

namespace {

using Json = nlohmann::ordered_json;

/// Raise if another choice would be made.
constexpr int kTuningVersion = 1;
constexpr std::int64_t kBlockSizes[] = {2, 4, 8, 16, 32, 64};
/// At most so many candidates of a method are measured repeatedly, each with this share of the
/// speed of the fastest in the first pass.
constexpr std::size_t kMostFinalists = 3;
constexpr double kFinalistSpeed = 0.8;

/// Passes of a candidate, one per repeat.
struct Passes {
  std::vector<MeasuredPass> all;

  [[nodiscard]] MeasuredPass sum(std::size_t count) const {
    MeasuredPass total;
    for (std::size_t i = 0; i < count; ++i) {
      total.speed.sequences += all[i].speed.sequences;
      total.speed.tokens += all[i].speed.tokens;
      total.speed.decode_seconds += all[i].speed.decode_seconds;
      total.forwards += all[i].forwards;
    }
    return total;
  }
};

double tokens_per_second(const MeasuredPass& pass) {
  return static_cast<double>(pass.speed.tokens - pass.speed.sequences) / pass.speed.decode_seconds;
}

double seconds_per_forward(const MeasuredPass& pass) {
  return pass.speed.decode_seconds / static_cast<double>(pass.forwards);
}

TunedCandidate figures(const DecodingMethod& method, const Passes& passes, const Passes& ar) {
  const std::size_t count = passes.all.size();
  const MeasuredPass own = passes.sum(count);
  const MeasuredPass baseline = ar.sum(count);
  const DecodingCost cost{
      .sequences = own.speed.sequences, .tokens = own.speed.tokens, .forwards = own.forwards};
  TunedCandidate result{.method = method,
                        .tokens_per_forward = cost.tokens_per_forward().value_or(0),
                        .pass_cost = seconds_per_forward(own) / seconds_per_forward(baseline),
                        .tokens_per_second = tokens_per_second(own),
                        .speed_up = tokens_per_second(own) / tokens_per_second(baseline),
                        .interval = std::nullopt};
  std::vector<double> ratios;
  for (std::size_t i = 0; i < count; ++i) {
    ratios.push_back(tokens_per_second(passes.all[i]) / tokens_per_second(ar.all[i]));
  }
  result.interval = geometric_interval(ratios);
  if (result.interval) {
    result.speed_up = result.interval->mean;
  }
  return result;
}

/// The fastest of each method's first passes, in their order.
std::vector<std::size_t> finalists(const std::vector<DecodingMethod>& methods,
                                   const std::vector<Passes>& passes) {
  std::vector<std::size_t> order;
  for (std::size_t i = 1; i < methods.size(); ++i) {
    order.push_back(i);
  }
  std::ranges::sort(order, std::greater(),
                    [&](std::size_t i) { return tokens_per_second(passes[i].all[0]); });
  std::map<std::string, std::vector<std::size_t>> chosen;
  for (const std::size_t i : order) {
    std::vector<std::size_t>& of_method = chosen[methods[i].name];
    if (of_method.empty() ||
        (of_method.size() < kMostFinalists &&
         tokens_per_second(passes[i].all[0]) >=
             kFinalistSpeed * tokens_per_second(passes[of_method.front()].all[0]))) {
      of_method.push_back(i);
    }
  }
  std::vector<std::size_t> result;
  for (const auto& [name, indices] : chosen) {
    result.insert(result.end(), indices.begin(), indices.end());
  }
  std::ranges::sort(result);
  return result;
}

class Tuner {
 public:
  Tuner(const ModelUnderTest& model, const EvaluationContext& context,
        std::span<const DecodeRequest> requests, std::vector<DecodingMethod> candidates,
        const TuningSettings& settings)
      : model_(model), context_(context), requests_(requests), settings_(settings) {
    const PhaseClock::Reading caller = context.clock.read();
    deadline_seconds_ = caller.deadline_seconds;
    per_pass_ = std::max(settings.problems, settings.batch_prompts);
    for (DecodingMethod& method : candidates) {
      add(std::move(method));
    }
  }

  [[nodiscard]] std::optional<Tuning> run() {
    together(context_.comm, [&] {
      if (methods_.size() < 2) {
        throw DataError(fmt::format(
            "tuning: no candidate fits the model's {} positions; lower evaluate.max_new_tokens",
            model_.config.max_position_embeddings));
      }
      make_transformer();
    });
    passes_.resize(methods_.size());
    // First of all code, buffers, device graphs and the search for the fastest matrix products.
    for (const DecodingMethod& method : methods_) {
      if (!decode(method, /*repeat=*/0, settings_.batch_prompts)) {
        return std::nullopt;
      }
    }
    std::vector<std::size_t> open(methods_.size());
    for (std::size_t i = 0; i < open.size(); ++i) {
      open[i] = i;
    }
    for (std::int32_t repeat = 0; repeat < settings_.repeats; ++repeat) {
      for (const std::size_t i : open) {
        const auto pass = decode(methods_[i], repeat, per_pass_);
        if (!pass) {
          return std::nullopt;
        }
        passes_[i].all.push_back(*pass);
        expect_decoding(*pass);
      }
      if (repeat == 0) {
        open = finalists(methods_, passes_);
        open.insert(open.begin(), 0);
      }
    }
    Tuning tuning{
        .machine = kind_of_rank(context_.comm, context_.kernels.device(), omp_get_max_threads()),
        .batch_prompts = settings_.batch_prompts,
        .candidates = {}};
    for (std::size_t i = 0; i < methods_.size(); ++i) {
      tuning.candidates.push_back(figures(methods_[i], passes_[i], passes_[0]));
    }
    return tuning;
  }

 private:
  void add(DecodingMethod method) {
    std::int64_t positions = 0;
    std::int64_t branch_rows = 0;
    for (const DecodeRequest& request : requests_) {
      const auto decoder = method.make(request);
      positions = std::max(positions, decoder->max_positions());
      branch_rows = std::max(branch_rows, decoder->max_branch_rows());
    }
    if (positions <= model_.config.max_position_embeddings) {
      capacity_ = std::max(capacity_, positions);
      branch_rows_ = std::max(branch_rows_, branch_rows);
      methods_.push_back(std::move(method));
    }
  }

  void expect_decoding(const MeasuredPass& pass) const {
    if (pass.forwards == 0) {
      throw DataError(fmt::format(
          "tuning {}: every answer ends with its first token, which nothing can make faster; raise "
          "evaluate.max_new_tokens or take other prompts",
          model_.name));
    }
  }

  void make_transformer() {
    const DrafterSource* adapter = nullptr;
    for (const DecodingMethod& method : methods_) {
      adapter = method.needs_drafter()
                    ? drafter_for(method.name, method.need, model_.drafter, model_.directory)
                    : adapter;
    }
    transformer_ = std::make_unique<InferenceTransformer>(
        model_.config, model_.table, model_.read, context_.kernels, context_.account,
        InferenceTransformer::Options{.num_slots = settings_.batch_prompts,
                                      .slot_capacity = static_cast<std::int32_t>(capacity_),
                                      .branch_rows = static_cast<std::int32_t>(branch_rows_),
                                      .weights = model_.decode_weights,
                                      .adapter = adapter});
  }

  [[nodiscard]] std::optional<MeasuredPass> decode(const DecodingMethod& method,
                                                   std::int32_t repeat, std::int64_t count) {
    std::vector<DecodeRequest> requests;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t place = (repeat * per_pass_ + i) % std::ssize(requests_);
      requests.push_back(requests_[static_cast<std::size_t>(place)]);
    }
    context_.clock.enter(
        fmt::format("tune {} {} at batch {}", model_.name, method.label, settings_.batch_prompts),
        deadline_seconds_);
    return measure_pass(context_, *transformer_, method, requests, settings_.batch_prompts);
  }

  const ModelUnderTest& model_;
  const EvaluationContext& context_;
  std::span<const DecodeRequest> requests_;
  TuningSettings settings_;
  double deadline_seconds_ = 0;
  std::int64_t per_pass_ = 0;
  std::vector<DecodingMethod> methods_;
  std::int64_t capacity_ = 0;
  std::int64_t branch_rows_ = 0;
  std::unique_ptr<InferenceTransformer> transformer_;
  std::vector<Passes> passes_;  ///< By method.
};

bool has_key(std::string_view method, std::string_view key) {
  const std::vector<std::string> keys = decoding_method_keys(method);
  return std::ranges::find(keys, key) != keys.end();
}

Json to_json(const TunedCandidate& candidate) {
  Json json{{"method", candidate.method.name},
            {"settings", candidate.method.settings},
            {"tokens_per_forward", candidate.tokens_per_forward},
            {"pass_cost", candidate.pass_cost},
            {"tokens_per_second", candidate.tokens_per_second},
            {"speed_up", candidate.speed_up}};
  if (candidate.interval) {
    json["speed_up_low"] = candidate.interval->low;
    json["speed_up_high"] = candidate.interval->high;
  }
  return json;
}

/// Equal keys make equal choices but for the clock.
std::string key_of(const EvaluateConfig& config, const ModelUnderTest& model,
                   const EvaluationContext& context, std::span<const DecodeRequest> requests,
                   std::span<const DecodingMethod> candidates) {
  Json key{{"version", kTuningVersion},
           {"weights", hash_of_weights(model)},
           {"decode_weights", static_cast<int>(model.decode_weights)},
           {"device", context.kernels.device() == Device::cpu ? "cpu" : "cuda"},
           {"problems", config.speed_problems},
           {"repeats", config.speed_repeats},
           {"requests", Json::array()},
           {"candidates", Json::array()}};
  if (std::ranges::any_of(candidates, &DecodingMethod::needs_drafter) && model.drafter) {
    key["drafter"] = model.drafter->hash();
  }
  for (const DecodeRequest& request : requests) {
    key["requests"].push_back({request.prompt, request.max_new_tokens, request.eos_ids});
  }
  for (const DecodingMethod& method : candidates) {
    key["candidates"].push_back({method.label, method.settings});
  }
  return hash_hex(hash64(key.dump()));
}

constexpr const char* kTuningFile = "tuning.json";

/// {METHOD: block size} of an earlier call; null if there is none of this key.
Json earlier_choice(const std::filesystem::path& directory, const std::string& key) {
  const std::filesystem::path path = directory / kTuningFile;
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  try {
    const Json earlier = parse_bounded_json<Json>(verify_sealed(path), path.string());
    return earlier.at("key") == key ? earlier.at("block_sizes") : Json(nullptr);
  } catch (const std::exception& error) {
    log_warn("{}: {}; the block sizes are chosen anew", path.string(), error.what());
    return nullptr;
  }
}

void keep_choice(const std::filesystem::path& directory, const std::string& key,
                 const Tuning& tuning, const Json& block_sizes) {
  Json json{{"key", key},
            {"machine", tuning.machine},
            {"batch_prompts", tuning.batch_prompts},
            {"block_sizes", block_sizes},
            {"candidates", Json::array()}};
  for (const TunedCandidate& candidate : tuning.candidates) {
    json["candidates"].push_back(to_json(candidate));
  }
  make_directory(directory);
  publish_file(directory / kTuningFile, seal_json(json.dump(2) + "\n"));
}

}  // namespace

const TunedCandidate& Tuning::fastest(std::optional<std::string_view> method) const {
  const TunedCandidate* best = nullptr;
  for (const TunedCandidate& candidate : candidates) {
    const bool asked = method ? candidate.method.name == *method : &candidate != &candidates[0];
    if (asked && candidate.interval && (best == nullptr || candidate.speed_up > best->speed_up)) {
      best = &candidate;
    }
  }
  expect(best != nullptr, "tuning without a candidate");
  return *best;
}

const TunedCandidate& Tuning::choice() const {
  const TunedCandidate& best = fastest();
  return best.interval->low > 1 ? best : candidates.front();
}

std::vector<DecodingMethod> block_size_candidates(std::span<const std::string> methods,
                                                  const DecodingSettings& fixed,
                                                  std::uint64_t seed) {
  std::vector<DecodingMethod> candidates;
  candidates.push_back(make_decoding_method(kBaselineMethod, fixed, seed));
  for (const std::string& name : methods) {
    for (const std::int64_t block_size : kBlockSizes) {
      if (has_key(name, "block_size")) {
        candidates.push_back(varied_method(name, fixed, {{"block_size", block_size}}, seed));
      }
    }
  }
  return candidates;
}

std::vector<DecodingMethod> tuning_candidates(std::span<const std::string> methods,
                                              const DecodingSettings& fixed, std::uint64_t seed) {
  std::vector<DecodingMethod> candidates;
  for (const DecodingMethod& plain : block_size_candidates(methods, fixed, seed)) {
    const std::int64_t block_size = plain.settings.at("block_size").get<std::int64_t>();
    if (has_key(plain.name, "tree_rows")) {
      for (const double least : {0.0, 0.3}) {
        candidates.push_back(varied_method(
            plain.name, fixed,
            {{"block_size", block_size}, {"tree_rows", block_size}, {"min_probability", least}},
            seed));
      }
      continue;
    }
    if (!has_key(plain.name, "blocks")) {
      candidates.push_back(plain);
      continue;
    }
    // One block that is verified alone is Jacobi decoding with the shrinking window.
    for (const auto& [blocks, verified] : {std::pair(2, 1), std::pair(1, 4), std::pair(2, 4)}) {
      candidates.push_back(varied_method(plain.name, fixed,
                                         {{"block_size", block_size},
                                          {"blocks", std::int64_t{blocks}},
                                          {"verification_size", std::int64_t{verified}}},
                                         seed));
    }
  }
  return candidates;
}

std::optional<Tuning> tune_decoding(const ModelUnderTest& model, const EvaluationContext& context,
                                    std::span<const DecodeRequest> requests,
                                    std::vector<DecodingMethod> candidates,
                                    const TuningSettings& settings) {
  const PhaseClock::Reading caller = context.clock.read();
  Tuner tuner(model, context, requests, std::move(candidates), settings);
  std::optional<Tuning> tuning = tuner.run();
  context.clock.enter(caller.phase, caller.deadline_seconds);
  return tuning;
}

std::vector<DecodeRequest> tuning_requests(const EvaluateConfig& config,
                                           const ModelUnderTest& model,
                                           const ChatTemplateOptions& chat_template,
                                           std::int64_t count) {
  TaskEncoder encoder(model.directory, chat_template);
  std::vector<DecodeRequest> requests;
  for (const std::string& entry : config.tasks) {
    const ProblemSet set = load_problem_set(entry, config, encoder, model.config.vocabulary_size);
    const std::int64_t all = std::ssize(set.problems);
    for (std::int64_t i = 0; i < std::min(count, all); ++i) {
      const Problem& problem =
          set.problems[static_cast<std::size_t>(i * all / std::min(count, all))];
      requests.push_back(set.request(sample_id(problem.index, 0), model.config.eos_ids));
    }
  }
  return requests;
}

std::optional<std::map<std::string, std::int32_t>> tuned_block_sizes(
    const EvaluateConfig& config, const ModelUnderTest& model, const EvaluationContext& context,
    const std::filesystem::path& model_directory) {
  const std::vector<DecodingMethod> candidates =
      block_size_candidates(config.methods, config.decoding, context.seed);
  if (candidates.size() < 2) {
    return std::map<std::string, std::int32_t>();
  }
  const TuningSettings settings{.problems = std::max(config.speed_problems, 1),
                                .repeats = config.speed_repeats};
  std::vector<DecodeRequest> requests;
  std::string text;
  std::string key;
  const bool stop = agree(context.comm, stop_requested(), [&] {
    requests = tuning_requests(config, model, context.chat_template,
                               std::int64_t{settings.problems} * settings.repeats);
    if (context.comm.rank() == 0) {
      key = key_of(config, model, context, requests, candidates);
      text = earlier_choice(model_directory, key).dump();
    }
  });
  if (stop) {
    return std::nullopt;
  }
  text = broadcast_text(context.comm, text, 0);
  if (text == "null") {
    const auto tuning = tune_decoding(model, context, requests, candidates, settings);
    if (!tuning) {
      return std::nullopt;
    }
    together(context.comm, [&] {
      if (context.comm.rank() != 0) {
        return;
      }
      Json block_sizes;
      for (const std::string& name : config.methods) {
        if (has_key(name, "block_size")) {
          const TunedCandidate& best = tuning->fastest(name);
          block_sizes[name] = best.method.settings.at("block_size");
          log_info(
              "evaluate {}: block size {} of {} is the fastest of 2, 4, … 64 on {}: {:.2f} "
              "times the speed of ar",
              model.name, block_sizes[name].get<int>(), name, tuning->machine, best.speed_up);
        }
      }
      if (context.records_tuning) {
        record_tuning(model.directory, *tuning);
      }
      keep_choice(model_directory, key, *tuning, block_sizes);
      text = block_sizes.dump();
    });
    text = broadcast_text(context.comm, text, 0);
  }
  return parse_bounded_json<Json>(text, "rank 0's block sizes")
      .get<std::map<std::string, std::int32_t>>();
}

std::string tuning_table(const Tuning& tuning) {
  std::vector<const TunedCandidate*> shown;
  for (const TunedCandidate& candidate : tuning.candidates) {
    if (candidate.interval) {
      shown.push_back(&candidate);
    }
  }
  std::ranges::sort(shown, std::greater(), &TunedCandidate::tokens_per_second);
  std::string text = fmt::format("{:<48} {:>11} {:>14} {:>9} {:>19}\n", "settings", "tokens/pass",
                                 "cost of a pass", "tokens/s", "speed over ar");
  for (const TunedCandidate* one : shown) {
    text +=
        fmt::format("{:<48} {:>11.2f} {:>14.2f} {:>9.0f} {:>5.2f} ({:.2f} to {:.2f})\n",
                    one->method.label, one->tokens_per_forward, one->pass_cost,
                    one->tokens_per_second, one->speed_up, one->interval->low, one->interval->high);
  }
  return text +
         fmt::format("{} other settings were slower.\n", tuning.candidates.size() - shown.size());
}

bool record_tuning(const std::filesystem::path& model_directory, const Tuning& tuning) {
  Json entry{{"machine", tuning.machine}, {"batch_prompts", tuning.batch_prompts}};
  entry.update(to_json(tuning.choice()));
  std::optional<std::int32_t> block_size;
  for (const TunedCandidate& candidate : tuning.candidates) {
    if (candidate.method.name == "jacobi" && tuning.batch_prompts == 1) {
      block_size = tuning.fastest("jacobi").method.settings.at("block_size").get<std::int32_t>();
    }
  }
  return record_measured_decoding(model_directory, entry, block_size);
}

}  // namespace jforge
