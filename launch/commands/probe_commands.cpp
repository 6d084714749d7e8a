#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoints/safetensors.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "launch/commands/commands.h"
#include "launch/commands/loaded_model.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/sequence_decoder.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/training_transformer.h"
#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/read_file.h"
#include "workers/evaluate/decoding_method.h"
#include "workers/train/conversation_samples.h"

namespace jforge {

namespace {

using Json = nlohmann::json;

Json read_json(const std::filesystem::path& path) {
  Json json = try_bounded_json<Json>(read_file(path));
  if (json.is_discarded()) {
    throw DataError(path.string() + " is not JSON");
  }
  return json;
}

std::vector<TokenId> token_array(const Json& json, const std::filesystem::path& path,
                                 const char* what, std::int64_t vocabulary) {
  if (!json.is_array()) {
    throw DataError(fmt::format("{}: {} must be an array of token ids", path.string(), what));
  }
  std::vector<TokenId> tokens;
  for (const Json& id : json) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
        id.get<std::int64_t>() >= vocabulary) {
      throw DataError(fmt::format("{}: {} holds {}, which is no token id of this model (0 … {})",
                                  path.string(), what, id.dump(), vocabulary - 1));
    }
    tokens.push_back(id.get<TokenId>());
  }
  return tokens;
}

// `[…]` or `[[…], …]`; whether it was the nested form comes back too.
std::pair<std::vector<std::vector<TokenId>>, bool> read_sequences(const std::filesystem::path& path,
                                                                  std::int64_t vocabulary) {
  const Json json = read_json(path);
  if (!json.is_array() || json.empty()) {
    throw DataError(path.string() + ": expected [ids…] or [[ids…], …], not empty");
  }
  const bool nested = json.front().is_array();
  std::vector<std::vector<TokenId>> sequences;
  for (const Json& sequence : nested ? json : Json::array({json})) {
    sequences.push_back(token_array(sequence, path, "a sequence", vocabulary));
    if (sequences.back().empty()) {
      throw DataError(path.string() + ": a sequence is empty");
    }
  }
  return {std::move(sequences), nested};
}

std::size_t longest(const std::vector<std::vector<TokenId>>& sequences) {
  return std::ranges::max_element(sequences, {}, &std::vector<TokenId>::size)->size();
}

// The value that the word of an option stands for; the parser lets no other words through.
template <class Value, std::size_t N>
Value choice(const std::string& word, const std::pair<const char*, Value> (&values)[N]) {
  const auto found = std::ranges::find(values, word, &std::pair<const char*, Value>::first);
  expect(found != std::end(values), "a word that the parser knows and this command does not");
  return found->second;
}

std::vector<TokenId> blocks_of(const Json& json, const char* key, std::int32_t block_size,
                               const std::filesystem::path& path, std::int64_t vocabulary) {
  std::vector<TokenId> flat;
  for (const Json& block : json.at(key)) {
    const std::vector<TokenId> ids = token_array(block, path, key, vocabulary);
    if (ids.size() != static_cast<std::size_t>(block_size)) {
      throw DataError(fmt::format("{}: a block of {} has {} ids, not block_size = {}",
                                  path.string(), key, ids.size(), block_size));
    }
    flat.insert(flat.end(), ids.begin(), ids.end());
  }
  return flat;
}

struct PackedInput {
  PackedSample sample;
  std::vector<TokenId> eos_ids;
};

std::int32_t positive_number(const Json& json, const char* key, const std::filesystem::path& path) {
  try {
    if (const auto value = json_integer<std::int32_t>(json[key]); value >= 1) {
      return value;
    }
  } catch (const Json::type_error&) {
    // No whole number, or one beyond the type: refused with 0.
  }
  throw DataError(fmt::format("{}: {} is {}; it must be a whole number from 1 to {}", path.string(),
                              key, json[key].dump(), std::numeric_limits<std::int32_t>::max()));
}

PackedInput read_packed(const std::filesystem::path& path, std::int64_t vocabulary) {
  const Json json = read_json(path);
  for (const char* key : {"prompt", "block_size", "window", "noisy", "clean", "eos"}) {
    if (!json.is_object() || !json.contains(key)) {
      throw DataError(fmt::format("{}: key {} is missing", path.string(), key));
    }
  }
  PackedInput input;
  input.sample.block_size = positive_number(json, "block_size", path);
  input.sample.window = positive_number(json, "window", path);
  input.sample.prompt = token_array(json["prompt"], path, "prompt", vocabulary);
  input.sample.noisy = blocks_of(json, "noisy", input.sample.block_size, path, vocabulary);
  input.sample.clean = blocks_of(json, "clean", input.sample.block_size, path, vocabulary);
  if (json["eos"].is_array()) {
    input.eos_ids = token_array(json["eos"], path, "eos", vocabulary);
  } else if (json["eos"] != -1) {
    input.eos_ids = token_array(Json::array({json["eos"]}), path, "eos", vocabulary);
  }
  return input;
}

/// log softmax(row)[token]
double log_probability(std::span<const float> row, TokenId token) {
  const double most = *std::ranges::max_element(row);
  double sum = 0;
  for (const float value : row) {
    sum += std::exp(static_cast<double>(value) - most);
  }
  return static_cast<double>(row[static_cast<std::size_t>(token)]) - most - std::log(sum);
}

/// Log-probabilities of the sample's targets.
std::vector<double> target_log_probabilities(InferenceTransformer& inference,
                                             const CausalSample& sample) {
  const auto last = static_cast<std::int64_t>(sample.tokens.size()) - 1;
  std::vector<DecodeRow> rows;
  for (std::int64_t i = 0; i < last; ++i) {
    rows.push_back({sample.tokens[static_cast<std::size_t>(i)],
                    {0, static_cast<std::int32_t>(i)},
                    i + 1 >= sample.first_target});
  }
  std::vector<double> values;
  inference.predict_logits(rows, [&](std::int64_t first, const TensorView& logits) {
    for (std::int64_t i = 0; i < logits.shape()[0]; ++i) {
      const std::int64_t target = sample.first_target + first + i;
      values.push_back(log_probability(logits.rows(i, i + 1).span<float>(),
                                       sample.tokens[static_cast<std::size_t>(target)]));
    }
  });
  return values;
}

Json result_json(const DecodeResult& result, std::int32_t block_size) {
  Json blocks = Json::array();
  for (const TrajectoryBlock& block : result.blocks) {
    Json states = Json::array();
    for (auto it = block.states.begin(); it != block.states.end(); it += block_size) {
      states.push_back(std::vector<TokenId>(it, it + block_size));
    }
    blocks.push_back({{"states", states}});
  }
  return {{"tokens", result.tokens},
          {"stop", result.stop == StopReason::eos ? "eos" : "length"},
          {"prefill_forwards", result.prefill_forwards},
          {"forwards", result.forwards},
          {"accepted", result.accepted},
          {"blocks", blocks}};
}

}  // namespace

ExitCode probe_logits_command(const ProbeOptions& options) {
  expect_plain_output(options.out);
  LoadedModel model(options.model, options.device);
  const auto [sequences, nested] = read_sequences(options.tokens, model.config.vocabulary_size);
  const auto inference =
      model.inference(1, static_cast<std::int64_t>(longest(sequences)), options.decode_weights);
  std::vector<std::vector<float>> logits;
  std::vector<SafetensorsTensor> tensors;
  for (const auto& sequence : sequences) {
    const auto length = static_cast<std::int64_t>(sequence.size());
    std::vector<DecodeRow> rows;
    for (std::int64_t i = 0; i < length; ++i) {
      rows.push_back(
          {sequence[static_cast<std::size_t>(i)], {0, static_cast<std::int32_t>(i)}, true});
    }
    auto& values =
        logits.emplace_back(static_cast<std::size_t>(length * model.config.vocabulary_size));
    inference->logits(rows, TensorView(values.data(), {length, model.config.vocabulary_size}));
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    tensors.push_back(
        {nested ? fmt::format("logits.{}", i) : "logits",
         {static_cast<std::int64_t>(sequences[i].size()), model.config.vocabulary_size},
         logits[i],
         DType::float32});
  }
  write_safetensors(options.out, tensors);
  return ExitCode::ok;
}

ExitCode probe_loss_command(const ProbeOptions& options) {
  expect_plain_output(options.out);
  // Written so that NaN is refused too.
  if (!(std::abs(options.ar_weight) <= std::numeric_limits<float>::max())) {
    throw ConfigError(
        fmt::format("--ar-weight must be a finite number, not {}", options.ar_weight));
  }
  PackingOptions packing;
  packing.mask = choice<MaskKind>(
      options.mask,
      {{"noise", MaskKind::noise}, {"window", MaskKind::window}, {"clean", MaskKind::clean}});
  packing.reduction =
      choice<LossReduction>(options.reduction, {{"token_mean", LossReduction::token_mean},
                                                {"paper", LossReduction::paper},
                                                {"repo", LossReduction::repo}});
  packing.kept = choice<KeptOffsets>(
      options.kept,
      {{"from_first_difference", KeptOffsets::from_first_difference}, {"all", KeptOffsets::all}});
  LoadedModel model(options.model, options.device);
  const PackedInput input = read_packed(options.packed, model.config.vocabulary_size);
  packing.eos_ids = input.eos_ids;
  const PackedBatch batch = pack_samples(std::span(&input.sample, 1), packing, 1.0F);
  const Buffer memory = model.flat_weights();
  const TensorView weights = memory.floats({model.table.flat_size()});
  Buffer gradients(memory.bytes(), model.account);
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  const auto ar_weight = static_cast<float>(options.ar_weight);
  const TensorView flat_gradients = gradients.floats({model.table.flat_size()});
  FlatParameters parameters(model.table, weights, *model.kernels, model.account);
  FlatGradients sink(model.table, flat_gradients, *model.kernels, model.account);
  transformer.forward(batch, parameters);
  ResultSums results(*model.kernels, model.account);
  results.reset(2);
  transformer.loss_and_backward(parameters, {1.0F, ar_weight, results.part(0, 2)}, sink);
  const std::span<const double> sums = results.read();
  const auto consistency = static_cast<float>(sums[0]);
  const auto autoregressive = static_cast<float>(sums[1]);
  const auto loss = static_cast<float>(sums[0] + options.ar_weight * sums[1]);
  std::vector<SafetensorsTensor> tensors = {
      {"loss", {1}, std::span(&loss, 1), DType::float32},
      {"consistency_loss", {1}, std::span(&consistency, 1), DType::float32},
      {"ar_loss", {1}, std::span(&autoregressive, 1), DType::float32}};
  for (const ParameterEntry& entry : model.table.entries()) {
    std::vector<std::int64_t> shape;
    for (int i = 0; i < entry.shape.rank(); ++i) {
      shape.push_back(entry.shape[i]);
    }
    const ConstTensorView gradient =
        model.table.tensor(ConstTensorView(flat_gradients), entry.name);
    tensors.push_back({entry.name, shape, gradient.span<float>(), DType::float32});
  }
  write_safetensors(options.out, tensors);
  return ExitCode::ok;
}

ExitCode probe_likelihood_command(const ProbeOptions& options) {
  LoadedModel model(options.model, options.device);
  ConversationFiles files;
  files.files = {options.pairs.string()};
  files.question_field = "question";
  files.answer_field = "answer";
  files.longest = std::numeric_limits<std::int64_t>::max();  // None may be left out.
  files.eos_ids = model.config.eos_ids;
  const std::vector<CausalSample> samples =
      read_conversations(files, BytePairTokenizer::load(options.model),
                         ChatTemplate::load(options.model, {.force_chatml = options.chatml}));
  const std::size_t capacity = std::ranges::max(samples, {}, [](const CausalSample& one) {
                                 return one.tokens.size();
                               }).tokens.size();
  if (std::cmp_greater(capacity, model.config.max_position_embeddings)) {
    throw DataError(fmt::format("{}: a pair takes {} tokens, the model has {} positions",
                                options.pairs.string(), capacity,
                                model.config.max_position_embeddings));
  }
  const auto inference =
      model.inference(1, static_cast<std::int64_t>(capacity), options.decode_weights);
  std::string lines;
  for (const CausalSample& sample : samples) {
    const std::vector<double> values = target_log_probabilities(*inference, sample);
    lines += Json{{"log_probabilities", values}}.dump() + "\n";
  }
  write_output(options.out, lines);
  return ExitCode::ok;
}

ExitCode probe_decode_command(const ProbeOptions& options) {
  const bool shrinking = choice<bool>(options.window, {{"shrinking", true}, {"running", false}});
  const DecodingSettings settings =
      command_settings(options.method, options.block_size, options.settings);
  const DecodingMethod method = make_decoding_method(options.method, settings, options.seed);
  // The shrinking window is the trajectories' decoding: whole blocks, every state.
  const bool trajectories = options.method == "jacobi" && shrinking;
  LoadedModel model(options.model, options.device);
  const auto [sequences, nested] = read_sequences(options.tokens, model.config.vocabulary_size);
  const JacobiOptions trajectory_options{
      .block_size = static_cast<std::int32_t>(std::get<std::int64_t>(settings.at("block_size"))),
      .seed = options.seed,
      .complete_blocks = true,
      .record_states = true};
  std::vector<std::unique_ptr<SequenceDecoder>> decoders;
  std::int64_t capacity = 1;
  std::int64_t branch_rows = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    DecodeRequest request{static_cast<PromptId>(i), sequences[i], options.max_new_tokens,
                          options.ignore_eos ? std::vector<TokenId>{} : model.config.eos_ids,
                          method.sampling};
    decoders.push_back(trajectories ? make_jacobi_decoder(std::move(request), trajectory_options)
                                    : method.make(std::move(request)));
    capacity = std::max(capacity, decoders.back()->max_positions());
    branch_rows = std::max(branch_rows, decoders.back()->max_branch_rows());
  }
  const auto inference = model.inference(1, capacity, options.decode_weights, branch_rows);
  DecodeEngine engine(*inference, 1);
  Json results = Json::array();
  for (const DecodeResult& result : decode_all(engine, std::move(decoders))) {
    // One slot keeps their order.
    results.push_back(result_json(result, trajectory_options.block_size));
  }
  write_output(options.out, results.dump() + "\n");
  return ExitCode::ok;
}

}  // namespace jforge
