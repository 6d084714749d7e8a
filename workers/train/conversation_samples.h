#pragma once

/// Question–answer pairs as sequences for ordinary autoregressive training: one conversation in the
/// model's chat template each, of which the answer is learnt.

#include <cstdint>
#include <string>
#include <vector>

#include "data/batches/sample_order.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "workers/train/distillation_trainer.h"

namespace jforge {

/// Where the pairs are.
struct ConversationFiles {
  std::vector<std::string> files;     ///< As RecordStream reads them.
  std::string question_field;         ///< Holds the question's text.
  std::string answer_field;           ///< Holds the answer's text.
  std::int64_t longest = 0;           ///< Tokens; longer sequences are left out.
  std::string longest_key;            ///< The configuration's key for it.
  std::vector<TokenId> eos_ids = {};  ///< Every answer has one of them; it ends with the first …
  bool whole_end = false;             ///< … or with all that the template writes behind it.
  bool train_prompt = false;          ///< Learn the whole sequence, not the answer alone.
};

/// Rendered and tokenized pairs in the files' order; logs how many were left out as too long.
/// Throws DataError naming file and line of a record without the fields or with an empty answer,
/// and when no sample is left; ConfigError, also with file and line, when the chat template does
/// not continue its own generation prompt, with thinking or without, or ends answers with none of
/// `eos_ids`.
[[nodiscard]] std::vector<CausalSample> read_conversations(const ConversationFiles& files,
                                                           const BytePairTokenizer& tokenizer,
                                                           const ChatTemplate& chat);

/// The sample order's endless stream, cut after `steps` batches, over samples kept in memory.
class ConversationSamples final : public SampleSource {
 public:
  /// `order.num_samples` is the number of samples.
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
