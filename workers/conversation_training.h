#pragma once

/// Ordinary training on question–answer pairs: of a new model (`jforge pretrain`) or an existing
/// one (`jforge finetune`).

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

struct ConversationTraining {
  std::string phase;  ///< "pretrain" or "finetune".
  RunSettings run;
  TrainConfig train;
  CheckpointConfig checkpoint;
  DeviceChoice device = DeviceChoice::automatic;
  std::filesystem::path source;  ///< Tokenizer and chat template, or an existing model.
  ChatTemplateOptions chat_template = {};
  std::optional<PretrainSettings> new_model;  ///< Empty: train the model in `source`.
  ConversationFiles files;                    ///< Fields that depend on the model are unset.
  std::optional<std::int64_t> max_tokens;     ///< Default: the model's positions.
  std::optional<double> epochs;               ///< Over the samples. Excludes `steps`.
  std::optional<std::int64_t> steps;
  std::filesystem::path output;    ///< Hugging Face directory to write.
  DType stored = DType::bfloat16;  ///< Type of the written weights.
};
[[nodiscard]] ConversationTraining training_of(const PretrainConfig& config);
[[nodiscard]] ConversationTraining training_of(const FinetuneConfig& config);

/// A training whose files have been read.
struct PreparedTraining {
  TransformerConfig model;
  std::vector<CausalSample> samples;
  std::int64_t steps = 0;
};
/// Reads configuration, tokenizer and pairs. Throws DataError or ConfigError naming the fault;
/// ConfigError for a sample that does not fit train.tokens_per_rank.
[[nodiscard]] PreparedTraining prepare(const ConversationTraining& training);
/// Returns a hash over samples, steps and vocabulary size.
[[nodiscard]] std::string content_hash(const PreparedTraining& prepared);

/// All must outlive the call.
struct ConversationServices : PhaseServices {
  /// Called on every rank after a training step.
  std::function<void(const StepMetrics&)> on_step;
  /// Called on every rank once nothing can refuse the training any more, with whether steps are
  /// left.
  std::function<void(bool)> on_accepted;
  /// On rank 0: an earlier start has written training.output.
  bool finished_before = false;
};

/// Collective. Adds the hashes of tokenizer, data and an existing model to `identity`, which holds
/// the configuration's keys already. Throws DataError.
void identify_training(const Communicator& comm, const ConversationTraining& training,
                       Identity& identity);

/// Collective. Trains from the checkpoint that `choice` means, or from the beginning, and writes
/// the model to training.output. Returns false if a stop was requested; the state is then durable.
/// Throws ConfigError if the checkpoint's identity differs in more than `accepted`.
[[nodiscard]] bool train_on_conversations(const ConversationTraining& training,
                                          PreparedTraining prepared,
                                          const ConversationServices& services,
                                          const Identity& identity, const ResumeChoice& choice,
                                          const AcceptedChanges& accepted);

}  // namespace jforge
