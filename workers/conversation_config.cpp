#include "workers/conversation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>

#include "model/kernels/device_choice.h"
#include "runtime/error.h"

namespace jforge {

namespace {

// Dimensions that no model can have are the configuration's fault; beyond them TransformerConfig
// has the last word.
void validate_model(const PretrainSettings& settings) {
  const auto at_least_one = [](const char* key, std::int64_t value) {
    if (value < 1) {
      throw ConfigError(fmt::format("pretrain.{} = {} must be at least 1", key, value));
    }
  };
  at_least_one("hidden_size", settings.hidden_size);
  at_least_one("intermediate_size", settings.intermediate_size);
  at_least_one("num_layers", settings.num_layers);
  at_least_one("num_heads", settings.num_heads);
  at_least_one("num_kv_heads", settings.num_kv_heads);
  at_least_one("max_position_embeddings", settings.max_position_embeddings);
  if (settings.hidden_size % settings.num_heads != 0) {
    throw ConfigError(
        fmt::format("pretrain.hidden_size = {} is not a multiple of pretrain.num_heads = {}",
                    settings.hidden_size, settings.num_heads));
  }
  if (settings.num_heads % settings.num_kv_heads != 0) {
    throw ConfigError(
        fmt::format("pretrain.num_heads = {} is not a multiple of pretrain.num_kv_heads = {}",
                    settings.num_heads, settings.num_kv_heads));
  }
  if (settings.hidden_size / settings.num_heads % 2 != 0) {
    throw ConfigError(fmt::format(
        "pretrain.hidden_size / pretrain.num_heads = {} is odd: rotary positions need pairs",
        settings.hidden_size / settings.num_heads));
  }
  if (!(settings.rope_theta > 1 && std::isfinite(settings.rope_theta))) {
    throw ConfigError(fmt::format("pretrain.rope_theta = {} is not above 1", settings.rope_theta));
  }
}

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw ConfigError(what);
  }
}

// The model takes the place of everything that lies in its directory.
void expect_apart(const std::string& key, const std::filesystem::path& output,
                  const std::filesystem::path& run_directory) {
  const auto normal = [](const std::filesystem::path& path) {
    const std::filesystem::path whole =
        std::filesystem::weakly_canonical(std::filesystem::absolute(path));
    return whole.has_filename() ? whole : whole.parent_path();
  };
  const std::filesystem::path outer = normal(output);
  const std::filesystem::path inner = normal(run_directory);
  require(
      std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end(),
      key +
          " is run.directory or a folder above it, which the model would replace: name another "
          "directory");
}

void validate_training(const TrainConfig& train) {
  train.validate();
  require(train.ar_weight > 0,
          "train.ar_weight = 0 leaves nothing to train on: there is no other loss of pairs");
}

}  // namespace

void PretrainConfig::validate() const {
  require(!run.directory.empty(),
          "run.directory is missing: name the folder for checkpoints and logs");
  require(!pretrain.tokenizer.empty(),
          "pretrain.tokenizer is missing: name a directory with tokenizer files");
  require(!pretrain.output.empty(),
          "pretrain.output is missing: name the model directory to write");
  expect_apart("pretrain.output", pretrain.output, run.directory);
  run.validate();
  require(!pretrain.files.empty(), "pretrain.files is missing: name at least one JSONL file");
  require(pretrain.steps >= 1 && pretrain.steps <= kMostSteps,
          fmt::format("pretrain.steps must be at least 1 and at most {}", kMostSteps));
  expect_device("model.device", pretrain.device);
  validate_model(pretrain);
  validate_training(train);
  checkpoint.validate();
}

void FinetuneConfig::validate() const {
  require(!run.directory.empty(),
          "run.directory is missing: name the folder for checkpoints and logs");
  require(!model.source.empty(), "model.source is missing: name a Hugging Face directory");
  require(!finetune.output.empty(),
          "finetune.output is missing: name the model directory to write");
  std::error_code error;  // Ignored: a missing path is a different one.
  require(!std::filesystem::equivalent(model.source, finetune.output, error),
          "finetune.output is model.source, which it would overwrite: name another directory");
  expect_apart("finetune.output", finetune.output, run.directory);
  run.validate();
  expect_chat_template("finetune.template", finetune.chat_template);
  expect_template_arguments("finetune.template_arguments", finetune.template_arguments);
  require(!finetune.files.empty(), "finetune.files is missing: name at least one JSONL file");
  require(finetune.epochs.has_value() != finetune.steps.has_value(),
          "give finetune.epochs or finetune.steps, one of them");
  require(finetune.epochs.value_or(1) > 0 && finetune.steps.value_or(1) > 0,
          "finetune.epochs and finetune.steps must be positive");
  require(finetune.steps.value_or(1) <= kMostSteps && finetune.epochs.value_or(1) <= kMostEpochs,
          fmt::format("finetune.steps must be at most {}, finetune.epochs at most {}", kMostSteps,
                      kMostEpochs));
  require(finetune.max_tokens.value_or(1) > 0, "finetune.max_tokens must be at least 1");
  expect_device("model.device", model.device);
  validate_training(train);
  checkpoint.validate();
}

TransformerConfig new_model_config(const PretrainSettings& settings,
                                   const BytePairTokenizer& tokenizer) {
  TransformerConfig config;
  config.vocabulary_size = tokenizer.vocabulary_size();
  config.hidden_size = settings.hidden_size;
  config.intermediate_size = settings.intermediate_size;
  config.num_layers = settings.num_layers;
  config.num_heads = settings.num_heads;
  config.num_kv_heads = settings.num_kv_heads;
  config.max_position_embeddings = settings.max_position_embeddings;
  config.rope.theta = settings.rope_theta;
  config.tie_word_embeddings = settings.tie_word_embeddings;
  if (const auto eos = tokenizer.eos()) {
    config.eos_ids = {*eos};
  } else {
    throw DataError(
        "the tokenizer names no eos_token in tokenizer_config.json; pre-training needs one to end "
        "answers");
  }
  config.validate();
  return config;
}

}  // namespace jforge
