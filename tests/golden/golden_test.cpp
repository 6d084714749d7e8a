/// Compares our arithmetic with an independent implementation's values (reference/README.md).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/drafter_files.h"
#include "checkpoints/hf_model.h"
#include "checkpoints/safetensors.h"
#include "model/transformer/flat_parameters.h"
#include "model/transformer/inference_transformer.h"
#include "model/transformer/training_transformer.h"
#include "runtime/read_file.h"
#include "tests/support/kernel_calls.h"
#include "tests/support/tested_kernel_set.h"
#include "tests/support/whole_weights.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;

/// Qwen2 models, with losses of every mask and reduction.
constexpr std::array kQwen2Models{"gqa-untied", "mha-tied"};
/// Other families, with one file of losses each, because losses do not depend on the family; qwen3
/// also has the losses that the Qwen2 models lack.
constexpr std::array kFamilyModels{"qwen3",   "qwen3-tied", "llama-tied", "llama3", "llama-linear",
                                   "mistral", "smollm3",    "olmo2",      "granite"};

std::vector<std::string> model_names() {
  std::vector<std::string> names(kQwen2Models.begin(), kQwen2Models.end());
  names.insert(names.end(), kFamilyModels.begin(), kFamilyModels.end());
  return names;
}

/// ctest sets the variable; without it the counting test fails.
fs::path reference_directory() {
  const char* const source = std::getenv("JFORGE_SOURCE_DIR");
  return source == nullptr ? fs::path() : fs::path(source) / "tests" / "golden" / "reference";
}

std::vector<fs::path> loss_files(const std::string& model) {
  std::vector<fs::path> files;
  std::error_code absent;
  for (const auto& item : fs::directory_iterator(reference_directory() / model, absent)) {
    const std::string name = item.path().filename().string();
    if (name.starts_with("loss_") && name.ends_with(".safetensors")) {
      files.push_back(item.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

double relative_l2(std::span<const float> ours, std::span<const float> reference) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double error = static_cast<double>(ours[i]) - static_cast<double>(reference[i]);
    difference += error * error;
    norm += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  return std::sqrt(difference / norm);
}

std::vector<float> read_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& entry = file.entries().at(name);
  std::vector<float> values((entry.end - entry.begin) / sizeof(float));
  file.read_float32(name, entry.shape, values);
  return values;
}

/// Expects the gradients that `reference` holds under `prefix` and the names in `table`.
void expect_gradients(const ParameterTable& table, std::span<const float> ours,
                      const SafetensorsFile& reference, const std::string& prefix = "") {
  for (const ParameterEntry& entry : table.entries()) {
    ASSERT_TRUE(reference.contains(prefix + entry.name)) << entry.name;
    EXPECT_LT(relative_l2(ours.subspan(static_cast<std::size_t>(entry.offset),
                                       static_cast<std::size_t>(entry.shape.elements())),
                          read_tensor(reference, prefix + entry.name)),
              1e-3)
        << entry.name;
  }
}

nlohmann::json read_json(const fs::path& path) { return nlohmann::json::parse(read_file(path)); }

std::vector<TokenId> flatten(const nlohmann::json& blocks) {
  std::vector<TokenId> tokens;
  for (const nlohmann::json& block : blocks) {
    for (const nlohmann::json& token : block) {
      tokens.push_back(token.get<TokenId>());
    }
  }
  return tokens;
}

/// A reference model as the program loads it.
struct GoldenModel {
  explicit GoldenModel(const fs::path& model_directory)
      : directory(model_directory),
        config(read_hf_config(directory)),
        table(config, 2),
        values(static_cast<std::size_t>(table.flat_size())) {
    test::load_hf_weights(directory, config, table, {values.data(), {table.flat_size()}});
  }
  [[nodiscard]] ConstTensorView flat() const { return {values.data(), {table.flat_size()}}; }

  fs::path directory;
  TransformerConfig config;
  ParameterTable table;
  std::vector<float> values;
  std::unique_ptr<KernelSet> kernels = make_tested_kernel_set();
  MemoryAccount account{"golden"};
};

TEST(GoldenFiles, NoneIsMissing) {
  for (const std::string model : kQwen2Models) {
    EXPECT_GE(loss_files(model).size(), 7U) << reference_directory() / model;
  }
  for (const std::string model : kFamilyModels) {
    EXPECT_EQ(loss_files(model).size(), model == "qwen3" ? 9U : 1U)
        << reference_directory() / model;
  }
}

class GoldenModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenModel model_{reference_directory() / GetParam()};
};

TEST_P(GoldenModelTest, LogitsAgree) {
  const auto ids = read_json(model_.directory / "ids.json").get<std::vector<TokenId>>();
  const auto rows_count = static_cast<std::int64_t>(ids.size());
  InferenceTransformer transformer(model_.config, model_.table, model_.flat(), *model_.kernels,
                                   model_.account,
                                   {.num_slots = 1, .slot_capacity = 16, .max_rows = 4});
  std::vector<DecodeRow> rows;
  for (const TokenId id : ids) {
    rows.push_back({.token = id, .place = {0, static_cast<std::int32_t>(rows.size())}});
  }
  std::vector<float> logits(ids.size() * static_cast<std::size_t>(model_.config.vocabulary_size));
  transformer.logits(rows, {logits.data(), {rows_count, model_.config.vocabulary_size}});

  const SafetensorsFile reference(model_.directory / "logits.safetensors");
  ASSERT_EQ(reference.entries().at("logits").shape,
            (std::vector<std::int64_t>{rows_count, model_.config.vocabulary_size}));
  EXPECT_LT(relative_l2(logits, read_tensor(reference, "logits")), 1e-4);
}

TEST_P(GoldenModelTest, GreedyTokensAreEqual) {
  const auto ids = read_json(model_.directory / "ids.json").get<std::vector<TokenId>>();
  const auto expected = read_json(model_.directory / "greedy48.json").get<std::vector<TokenId>>();
  ASSERT_EQ(expected.size(), 48U);
  InferenceTransformer transformer(model_.config, model_.table, model_.flat(), *model_.kernels,
                                   model_.account,
                                   {.num_slots = 1, .slot_capacity = 64, .max_rows = 0});
  std::vector<DecodeRow> rows;
  for (const TokenId id : ids) {
    rows.push_back(
        {id, {0, static_cast<std::int32_t>(rows.size())}, rows.size() + 1 == ids.size()});
  }
  std::vector<TokenId> tokens(1);
  transformer.predict(rows, tokens);
  while (tokens.size() < expected.size()) {
    const auto position = static_cast<std::int32_t>(ids.size() + tokens.size() - 1);
    const DecodeRow row{.token = tokens.back(), .place = {0, position}};
    TokenId next = -1;
    transformer.predict({&row, 1}, {&next, 1});
    tokens.push_back(next);
  }
  EXPECT_EQ(tokens, expected);
}

std::string model_case_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModelTest, ::testing::ValuesIn(model_names()),
                         model_case_name);

/// Settings from a reference file's name.
struct LossCase {
  PackingOptions options;
  float ar_weight = 1;
  ArLoss ar_loss = ArLoss::cross_entropy;
  bool frozen = false;  ///< the teacher is the model with every parameter times 0.75
  PromptId prompt_id = 0;
  std::string packed = "packed.json";
};

bool cut_prefix(std::string& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.erase(0, prefix.size());
  return true;
}

/// loss_MASK_REDUCTION[_all][_ar10][_eos][_decay08][_odd][_frozen][_distilled][_prompt]; throws on
/// any other part.
LossCase parse_case(const fs::path& path) {
  LossCase parsed;
  std::string name = path.stem().string();
  const auto take = [&](const auto& choices, auto& result) {
    for (const auto& [prefix, value] : choices) {
      if (cut_prefix(name, std::string("_") + prefix)) {
        result = value;
        return;
      }
    }
    throw std::invalid_argument("cannot read the name of " + path.string());
  };
  using Mask = std::pair<const char*, MaskKind>;
  using Reduction = std::pair<const char*, LossReduction>;
  cut_prefix(name, "loss");
  take(std::array{Mask{"noise", MaskKind::noise}, Mask{"window", MaskKind::window},
                  Mask{"clean", MaskKind::clean}, Mask{"mixed", MaskKind::mixed}},
       parsed.options.mask);
  take(std::array{Reduction{"token_mean", LossReduction::token_mean},
                  Reduction{"paper", LossReduction::paper}, Reduction{"repo", LossReduction::repo}},
       parsed.options.reduction);
  while (!name.empty()) {
    if (cut_prefix(name, "_all")) {
      parsed.options.kept = KeptOffsets::all;
    } else if (cut_prefix(name, "_ar10")) {
      parsed.ar_weight = 10;
    } else if (cut_prefix(name, "_eos")) {
      parsed.packed = "packed_eos.json";
    } else if (cut_prefix(name, "_decay08")) {
      parsed.options.consistency_decay = 0.8F;
    } else if (cut_prefix(name, "_odd")) {
      parsed.prompt_id = 1;
    } else if (cut_prefix(name, "_frozen")) {
      parsed.frozen = true;
    } else if (cut_prefix(name, "_distilled")) {
      parsed.ar_loss = ArLoss::distillation;
    } else if (cut_prefix(name, "_prompt")) {
      parsed.options.train_prompt = true;
    } else {
      throw std::invalid_argument("cannot read the name of " + path.string());
    }
  }
  return parsed;
}

PackedSample read_sample(const fs::path& path, std::vector<TokenId>& eos_ids) {
  const nlohmann::json packed = read_json(path);
  if (packed.at("eos").get<TokenId>() >= 0) {
    eos_ids.push_back(packed.at("eos").get<TokenId>());
  }
  return {.prompt_id = 0,
          .block_size = packed.at("block_size").get<std::int32_t>(),
          .window = packed.at("window").get<std::int32_t>(),
          .prompt = packed.at("prompt").get<std::vector<TokenId>>(),
          .noisy = flatten(packed.at("noisy")),
          .clean = flatten(packed.at("clean"))};
}

std::vector<fs::path> all_loss_files() {
  std::vector<fs::path> files;
  for (const std::string& model : model_names()) {
    const std::vector<fs::path> found = loss_files(model);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

class GoldenLossTest : public ::testing::TestWithParam<fs::path> {};

TEST_P(GoldenLossTest, LossesAndGradientsAgree) {
  const GoldenModel model(GetParam().parent_path());
  LossCase loss_case = parse_case(GetParam());
  PackedSample sample = read_sample(model.directory / loss_case.packed, loss_case.options.eos_ids);
  sample.prompt_id = loss_case.prompt_id;
  PackedBatch batch = pack_samples({&sample, 1}, loss_case.options, 1.0F);
  MemoryAccount account("training");
  PackedBatch teacher_batch;
  std::vector<float> teacher_values = model.values;
  std::ranges::transform(teacher_values, teacher_values.begin(),
                         [](float value) { return 0.75F * value; });
  FlatParameters teacher_parameters(model.table, {teacher_values.data(), {model.table.flat_size()}},
                                    *model.kernels, account);
  TrainingTransformer teacher(model.config, model.table, *model.kernels, account,
                              {.forward_only = true});
  TeacherForward taught;
  if (loss_case.frozen) {
    take_teacher_rows(batch, teacher_batch, loss_case.ar_loss == ArLoss::distillation);
    taught = {.hidden = teacher.forward(teacher_batch, teacher_parameters),
              .parameters = &teacher_parameters};
  }
  TrainingTransformer transformer(model.config, model.table, *model.kernels, account, {});
  std::vector<float> gradients(model.values.size(), 0.0F);
  FlatParameters parameters(model.table, model.flat(), *model.kernels, account);
  FlatGradients sink(model.table, {gradients.data(), {model.table.flat_size()}}, *model.kernels,
                     account);
  transformer.forward(batch, parameters);
  const VocabularyLossSums sums =
      test::loss_and_backward(*model.kernels, transformer, parameters, 1.0F, loss_case.ar_weight,
                              sink, taught, loss_case.ar_loss);

  const SafetensorsFile reference(GetParam());
  const auto scalar = [&](const char* name) {
    return static_cast<double>(read_tensor(reference, name).at(0));
  };
  const auto expect_close = [&](double ours, const char* name) {
    EXPECT_NEAR(ours, scalar(name), 1e-4 * std::abs(scalar(name))) << name;
  };
  expect_close(sums.consistency, "consistency_loss");
  expect_close(sums.autoregressive, "ar_loss");
  expect_close(sums.consistency + static_cast<double>(loss_case.ar_weight) * sums.autoregressive,
               "loss");
  EXPECT_GT(scalar("consistency_loss"), 0);

  expect_gradients(model.table, gradients, reference);
  EXPECT_EQ(reference.entries().size(), 3 + model.table.entries().size());
}

class GoldenAdapterTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenAdapterTest, LossAndGradientsAgree) {
  const GoldenModel model(reference_directory() / GetParam());
  const SafetensorsFile reference(model.directory / "adapter.safetensors");
  const AdapterShape shape{.rank = 3, .alpha = 6};
  const ParameterTable table(model.config, shape, 2);
  ASSERT_EQ(reference.entries().size(), 1 + 2 * table.entries().size());
  std::vector<float> values(static_cast<std::size_t>(table.flat_size()));
  for (const ParameterEntry& entry : table.entries()) {
    std::ranges::copy(read_tensor(reference, entry.name), values.begin() + entry.offset);
  }
  PackingOptions options{.mask = MaskKind::clean, .consistency_decay = 0.8F, .ar_targets = false};
  const PackedSample sample = read_sample(model.directory / "packed.json", options.eos_ids);
  const PackedBatch batch = pack_samples({&sample, 1}, options, 1.0F);
  MemoryAccount account("training");
  TrainingTransformer transformer(model.config, model.table, *model.kernels, account,
                                  {.adapter = shape});
  FlatParameters parameters(model.table, model.flat(), *model.kernels, account);
  FlatParameters adapter(table, {values.data(), {table.flat_size()}}, *model.kernels, account);
  std::vector<float> gradients(values.size(), 0.0F);
  FlatGradients sink(table, {gradients.data(), {table.flat_size()}}, *model.kernels, account);
  transformer.forward(batch, parameters, &adapter);
  const VocabularyLossSums sums = test::losses_of(*model.kernels, [&](const TensorView& found) {
    transformer.loss_and_backward(parameters, adapter, {.sums = found}, sink);
  });
  const auto expected = static_cast<double>(read_tensor(reference, "consistency_loss").at(0));
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(sums.consistency, expected, 1e-4 * expected);
  expect_gradients(table, gradients, reference, "gradient.");
}

TEST_P(GoldenAdapterTest, DraftingRowsHavePeftsLogits) {
  const GoldenModel model(reference_directory() / GetParam());
  const DrafterFiles drafter(model.directory / kDrafterFolder, model.config);
  const auto ids = read_json(model.directory / "ids.json").get<std::vector<TokenId>>();
  const auto count = static_cast<std::int32_t>(ids.size());
  MemoryAccount account("decoding");
  InferenceTransformer transformer(
      model.config, model.table, model.flat(), *model.kernels, account,
      {.slot_capacity = 64, .branch_rows = count, .adapter = &drafter.source()});
  std::vector<DecodeRow> rows;
  for (std::int32_t i = 0; i < count; ++i) {
    rows.push_back({ids[static_cast<std::size_t>(i)], {0, i, 0, 64}, true, true});
  }
  std::vector<float> logits(ids.size() * static_cast<std::size_t>(model.config.vocabulary_size));
  transformer.logits(rows, {logits.data(), {count, model.config.vocabulary_size}});
  const auto expected = read_tensor(
      SafetensorsFile(model.directory / kDrafterFolder / "logits.safetensors"), "logits");
  EXPECT_LT(relative_l2(logits, expected), 1e-4);
  const auto plain = read_tensor(SafetensorsFile(model.directory / "logits.safetensors"), "logits");
  EXPECT_GT(relative_l2(plain, expected), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenAdapterTest, ::testing::Values("qwen3", "olmo2", "granite"));

class GoldenHeadTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenHeadTest, LossAndGradientsAgree) {
  const GoldenModel model(reference_directory() / GetParam());
  const DrafterFiles files(model.directory / kDrafterFolder, model.config);
  const auto& shape = std::get<HeadShape>(files.source().shape);
  EXPECT_EQ(shape, (HeadShape{.layers = 2, .features = {0}, .mask_token = 18}));
  const ParameterTable& table = files.table();
  std::vector<float> values(static_cast<std::size_t>(table.flat_size()));
  for (const ParameterEntry& entry : table.entries()) {
    std::ranges::copy(files.source().read(entry).span<float>(), values.begin() + entry.offset);
  }
  PackingOptions options{.mask = MaskKind::clean,
                         .consistency_decay = 0.8F,
                         .ar_targets = false,
                         .noisy_last = true,
                         .mask_token = shape.mask_token};
  const PackedSample sample = read_sample(model.directory / "packed.json", options.eos_ids);
  PackedBatch batch = pack_samples({&sample, 1}, options, 1.0F);
  PackedBatch clean;
  take_clean_rows(batch, clean);
  MemoryAccount account("training");
  TrainingTransformer frozen(model.config, model.table, *model.kernels, account,
                             {.forward_only = true, .features = shape.features});
  TrainingTransformer head(head_config(model.config, shape), table, *model.kernels, account,
                           {.head = shape});
  FlatParameters parameters(model.table, model.flat(), *model.kernels, account);
  FlatParameters lent(table, {values.data(), {table.flat_size()}}, *model.kernels, account);
  std::vector<float> gradients(values.size(), 0.0F);
  FlatGradients sink(table, {gradients.data(), {table.flat_size()}}, *model.kernels, account);
  const ConstTensorView hidden = frozen.forward(clean, parameters);
  const FrozenForward forward{model.table, parameters, hidden, frozen.features()};
  head.forward_head(batch, forward, lent);
  const double loss = test::losses_of(*model.kernels, [&](const TensorView& sums) {
                        head.loss_and_backward_head(forward, lent, {.sums = sums}, sink);
                      }).consistency;

  const SafetensorsFile reference(model.directory / kDrafterFolder / "loss.safetensors");
  ASSERT_EQ(reference.entries().size(), 1 + table.entries().size());
  const auto expected = static_cast<double>(read_tensor(reference, "consistency_loss").at(0));
  EXPECT_NEAR(loss, expected, 1e-4 * expected);
  expect_gradients(table, gradients, reference);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenHeadTest,
                         ::testing::Values("qwen3-tied", "gqa-untied", "llama-tied", "smollm3"));

std::string loss_case_name(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name =
      info.param.parent_path().filename().string() + "_" + info.param.stem().string();
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenLossTest, ::testing::ValuesIn(all_loss_files()),
                         loss_case_name);

}  // namespace
}  // namespace jforge
