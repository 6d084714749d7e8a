#pragma once

/// The configurations of ordinary training on question–answer pairs: of a new model (`jforge
/// pretrain`) and of one that exists (`jforge finetune`).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "model/transformer/transformer_config.h"
#include "workers/job_config.h"

namespace jforge {

/// [pretrain]: model dimensions, sequences and steps.
struct PretrainSettings {
  std::filesystem::path tokenizer;  ///< Directory with the tokenizer files.
  std::filesystem::path output;     ///< Hugging Face directory to write.
  std::vector<std::string> files;   ///< JSONL of question and answer.
  DeviceChoice device = DeviceChoice::automatic;
  std::int64_t hidden_size = 128;
  std::int64_t intermediate_size = 320;
  std::int64_t num_layers = 6;
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t max_position_embeddings = 512;
  double rope_theta = 10000;
  bool tie_word_embeddings = true;
  std::int64_t steps = 1000;
};

struct PretrainConfig {
  RunSettings run;
  PretrainSettings pretrain;
  TrainConfig train;
  CheckpointConfig checkpoint;

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// [finetune]: pairs, steps and where the model goes.
struct FinetuneSettings {
  std::filesystem::path output;    ///< Hugging Face directory to write.
  std::vector<std::string> files;  ///< JSON lines of question and answer.
  std::string question_field = "question";
  std::string answer_field = "answer";
  std::optional<std::string> chat_template;  ///< As PromptImportConfig has it.
  TemplateArguments template_arguments;      ///< Likewise.
  std::optional<std::int64_t> max_tokens;    ///< Longer pairs are left out.
  std::optional<double> epochs;              ///< Over the pairs. Excludes `steps`.
  std::optional<std::int64_t> steps;
};

struct FinetuneConfig {
  RunSettings run;
  ModelSettings model;  ///< The model to train; decode_weights has no meaning.
  FinetuneSettings finetune;
  TrainConfig train;
  CheckpointConfig checkpoint;

  /// Throws ConfigError naming the key.
  void validate() const;
};

/// The model that `settings` describe, for texts of `tokenizer`. Throws DataError when that names
/// no end-of-text token.
[[nodiscard]] TransformerConfig new_model_config(const PretrainSettings& settings,
                                                 const BytePairTokenizer& tokenizer);

}  // namespace jforge
