#pragma once

/// Question–answer pairs as templated conversations for autoregressive training.

#include <cstdint>
#include <string>
#include <vector>

#include "data/batches/sample_order.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

struct ConversationFiles {
  std::vector<std::string> files;  ///< See RecordStream.
  std::string question_field;
  std::string answer_field;
  std::int64_t longest = 0;  ///< In tokens; longer sequences are dropped.
  std::string longest_key;
  std::vector<TokenId> eos_ids = {};  ///< An answer ends after its first one.
  bool whole_end = false;             ///< Keep all that the template writes after it.
  bool train_prompt = false;          ///< Train on the prompt too.
};

/// Returns tokenized pairs in the files' order; logs how many were too long. Throws DataError with
/// file and line for a record without the fields or with an empty answer, and if no sample is left.
/// Throws ConfigError with file and line if the chat template does not continue its own generation
/// prompt (with or without thinking) or ends an answer with none of `eos_ids`.
[[nodiscard]] std::vector<CausalSample> read_conversations(const ConversationFiles& files,
                                                           const BytePairTokenizer& tokenizer,
                                                           const ChatTemplate& chat);

/// Endless stream of in-memory samples, cut after `steps` batches.
class ConversationSamples final : public SampleSource {
 public:
  /// Requires: `order.num_samples` is the number of samples.
  ConversationSamples(std::vector<CausalSample> samples, const SampleOrderOptions& order,
                      std::int64_t steps);

  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::int64_t length(std::int64_t index) const override;
  [[nodiscard]] TrainingSample sample(std::int64_t index) override;

 private:
  [[nodiscard]] const CausalSample& at(std::int64_t index) const;

  SampleOrder order_;
  std::int64_t steps_;
  std::vector<CausalSample> samples_;
};

}  // namespace jforge
