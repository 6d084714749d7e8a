#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoints/drafter_files.h"
#include "checkpoints/safetensors.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "launch/commands/commands.h"
#include "launch/commands/loaded_model.h"
#include "launch/config/job_fields.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/decoding_method.h"
#include "model/decoding/jacobi_decoder.h"
#include "model/decoding/sequence_decoder.h"
#include "model/kernels/result_sums.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/training_transformer.h"
#include "runtime/bounded_json.h"
#include "runtime/durable_file.h"
#include "runtime/read_file.h"
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
      throw DataError(fmt::format("{}: {} holds {}, which is not a token id of this model (0 … {})",
                                  path.string(), what, id.dump(), vocabulary - 1));
    }
    tokens.push_back(id.get<TokenId>());
  }
  return tokens;
}

// Returns the sequences, and whether the file nests them: `[[…], …]` and not `[…]`.
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
    // Not a whole number, or beyond the type: rejected below.
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
  if (json.contains("prompt_id")) {
    try {
      input.sample.prompt_id = json_integer<PromptId>(json["prompt_id"]);
    } catch (const Json::type_error&) {
      throw DataError(fmt::format("{}: prompt_id is {}, which is not a whole number", path.string(),
                                  json["prompt_id"].dump()));
    }
  }
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

TrainConfig probed_training(const std::vector<std::string>& overrides) {
  for (const std::string& assignment : overrides) {
    if (!assignment.starts_with("train.") && !assignment.starts_with("rounds.1.mask=")) {
      throw ConfigError(fmt::format(
          "--set {}: a loss depends on train.KEY and on rounds.1.mask alone", assignment));
    }
  }
  TrainConfig train = read_job_config("[[rounds]]", "--set", overrides).train_config(1);
  train.validate();
  return train;
}

/// The model of --teacher, by default the probed one.
class ProbedTeacher {
 public:
  ProbedTeacher(const ProbeOptions& options, const ParameterTable& student)
      : model_(options.teacher.empty() ? options.model : options.teacher, options.device) {
    const auto alike = [](const ParameterEntry& a, const ParameterEntry& b) {
      return a.name == b.name && a.shape == b.shape;
    };
    if (!std::ranges::equal(model_.table.entries(), student.entries(), alike)) {
      throw ConfigError(fmt::format("--teacher {}: its weights have other shapes than those of {}",
                                    options.teacher.string(), options.model.string()));
    }
  }
  /// Also fills in the rows of `batch` that teach. Call once.
  TeacherForward forward(PackedBatch& batch, ArLoss ar_loss) {
    take_teacher_rows(batch, batch_, ar_loss == ArLoss::distillation);
    return {.hidden = transformer_.forward(batch_, parameters_), .parameters = &parameters_};
  }

 private:
  LoadedModel model_;
  Buffer weights_ = model_.flat_weights();
  FlatParameters parameters_{model_.table, weights_.floats({model_.table.flat_size()}),
                             *model_.kernels, model_.account};
  TrainingTransformer transformer_{
      model_.config, model_.table, *model_.kernels, model_.account, {.forward_only = true}};
  PackedBatch batch_;
};

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
  const TrainConfig train = probed_training(options.overrides);
  LoadedModel model(options.model, options.device);
  const PackedInput input = read_packed(options.packed, model.config.vocabulary_size);
  PackedBatch batch = pack_samples(std::span(&input.sample, 1), train.packing(input.eos_ids), 1.0F);
  const Buffer memory = model.flat_weights();
  const TensorView weights = memory.floats({model.table.flat_size()});
  Buffer gradients(memory.bytes(), model.account);
  const TensorView flat_gradients = gradients.floats({model.table.flat_size()});
  FlatParameters parameters(model.table, weights, *model.kernels, model.account);
  FlatGradients sink(model.table, flat_gradients, *model.kernels, model.account);
  std::optional<ProbedTeacher> teacher;
  if (train.teacher == TeacherKind::frozen) {
    teacher.emplace(options, model.table);
  }
  TrainingTransformer transformer(model.config, model.table, *model.kernels, model.account, {});
  const TeacherForward taught = teacher ? teacher->forward(batch, train.ar_loss) : TeacherForward{};
  transformer.forward(batch, parameters);
  ResultSums results(*model.kernels, model.account);
  results.reset(2);
  transformer.loss_and_backward(parameters,
                                {.consistency_scale = train.consistency_weight,
                                 .ar_scale = train.ar_weight,
                                 .sums = results.part(0, 2),
                                 .ar_loss = train.ar_loss},
                                sink, taught);
  const std::span<const double> read = results.read();
  const VocabularyLossSums sums{read[0], read[1]};
  const auto consistency = static_cast<float>(sums.consistency);
  const auto autoregressive = static_cast<float>(sums.autoregressive);
  const auto total = static_cast<float>(train.weighted(sums));
  std::vector<SafetensorsTensor> tensors = {
      {"loss", {1}, std::span(&total, 1), DType::float32},
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
  files.longest = std::numeric_limits<std::int64_t>::max();  // Leaves none out.
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
  const DecodingSettings settings =
      command_settings(options.method, options.block_size, options.settings);
  const DecodingMethod method = make_decoding_method(options.method, settings, options.seed);
  // The shrinking window is the trajectories' decoding: whole blocks, every state.
  const bool trajectories = options.method == "jacobi" && options.window == "shrinking";
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
  const auto inference =
      model.inference(1, capacity, options.decode_weights, branch_rows,
                      drafter_for(method.name, method.need, model.drafter.get(), options.model));
  DecodeEngine engine(*inference, 1);
  Json results = Json::array();
  for (const DecodeResult& result : decode_all(engine, std::move(decoders))) {
    // One slot keeps the order.
    results.push_back(result_json(result, trajectory_options.block_size));
  }
  write_output(options.out, results.dump() + "\n");
  return ExitCode::ok;
}

}  // namespace jforge
