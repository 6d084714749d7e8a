#pragma once

/// Ordinary training on question–answer pairs, by the trainer that distils: of a new model (`jforge
/// pretrain`) and of one that exists (`jforge finetune`).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoints/identity.h"
#include "runtime/comm/mpi_session.h"
#include "workers/conversation_config.h"
#include "workers/phases/services.h"
#include "workers/resume_choice.h"
#include "workers/train/conversation_samples.h"
#include "workers/train/train_config.h"

namespace jforge {

/// What is trained, and on what.
struct ConversationTraining {
  std::string phase;  ///< "pretrain" or "finetune".
  RunSettings run;
  TrainConfig train;
  CheckpointConfig checkpoint;
  DeviceChoice device = DeviceChoice::automatic;
  std::filesystem::path source;  ///< Tokenizer and chat template; of an existing model, all of it.
  ChatTemplateOptions chat_template = {};
  std::optional<PretrainSettings> new_model;  ///< Its dimensions; empty: the model in `source`.
  ConversationFiles files;                    ///< Without what depends on the model.
  std::optional<std::int64_t> max_tokens;     ///< Default: the model's positions.
  std::optional<double> epochs;               ///< Of the samples; or steps.
  std::optional<std::int64_t> steps;
  std::filesystem::path output;    ///< Hugging Face directory to write …
  DType stored = DType::bfloat16;  ///< … with weights of this type.
};
[[nodiscard]] ConversationTraining training_of(const PretrainConfig& config);
[[nodiscard]] ConversationTraining training_of(const FinetuneConfig& config);

/// A training with its files read.
struct PreparedTraining {
  TransformerConfig model;
  std::vector<CausalSample> samples;
  std::int64_t steps = 0;
};
/// Reads configuration, tokenizer and pairs. Throws DataError and ConfigError naming what is wrong
/// with them; ConfigError for a sample that does not fit train.tokens_per_rank.
[[nodiscard]] PreparedTraining prepare(const ConversationTraining& training);
/// Of samples, steps and vocabulary.
[[nodiscard]] std::string content_hash(const PreparedTraining& prepared);

/// What the surroundings offer. All must outlive the call.
struct ConversationServices : PhaseServices {
  /// Called on every rank after a training step.
  std::function<void(const StepMetrics&)> on_step;
  /// Called on every rank when nothing can refuse the training any more; whether steps are left.
  std::function<void(bool)> on_accepted;
  /// On rank 0: a start before this one has written training.output.
  bool finished_before = false;
};

/// Configuration keys of kind identity are in `identity` already; this adds the hashes of
/// tokenizer, data and, where it exists, model. Collective: rank 0 reads, all ranks get them.
/// Throws DataError.
void identify_training(const Communicator& comm, const ConversationTraining& training,
                       Identity& identity);

/// Collective. Trains from the checkpoint that `choice` means, or from the beginning, and writes
/// the model to training.output. Returns false when a stop was requested: what must be durable is.
/// Throws ConfigError when the checkpoint's identity differs in more than `accepted`.
[[nodiscard]] bool train_on_conversations(const ConversationTraining& training,
                                          PreparedTraining prepared,
                                          const ConversationServices& services,
                                          const Identity& identity, const ResumeChoice& choice,
                                          const AcceptedChanges& accepted);

}  // namespace jforge
