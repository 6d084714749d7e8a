#pragma once

/// Question–answer pairs as sequences for autoregressive training, one templated conversation each.

#include <cstdint>
#include <string>
#include <vector>

#include "data/batches/sample_order.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

struct ConversationFiles {
  std::vector<std::string> files;  ///< As in RecordStream.
  std::string question_field;
  std::string answer_field;
  std::int64_t longest = 0;           ///< Maximum tokens; longer sequences are dropped.
  std::string longest_key;            ///< Its configuration key.
  std::vector<TokenId> eos_ids = {};  ///< An answer ends after its first one.
  bool whole_end = false;             ///< Keep everything that the template writes after it.
  bool train_prompt = false;          ///< Train on the whole sequence, not only the answer.
};

/// Returns templated, tokenized pairs in the files' order; logs how many were dropped as too long.
/// Throws DataError naming file and line of a record without the fields or with an empty answer, or
/// if no sample is left. Throws ConfigError naming file and line if the chat template does not
/// continue its own generation prompt (with or without thinking) or ends an answer with none of
/// `eos_ids`.
[[nodiscard]] std::vector<CausalSample> read_conversations(const ConversationFiles& files,
                                                           const BytePairTokenizer& tokenizer,
                                                           const ChatTemplate& chat);

/// Samples in memory in the sample order's endless stream, limited to `steps` batches.
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
