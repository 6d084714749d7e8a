#pragma once

/// A benchmark task as one model sees it: its problems, put into the model's template and encoded.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tasks/task.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "model/decoding/sequence_decoder.h"
#include "runtime/ids.h"
#include "workers/evaluate/evaluate_config.h"

namespace jforge {

/// Names sample `sample` (0-based) of problem `index` as a request: sample · 2^32 + index, so that
/// a problem's first samples have the same ids, and with them random streams, however many follow.
[[nodiscard]] constexpr PromptId sample_id(std::int64_t index, std::int64_t sample) {
  return (sample << 32) | index;
}
[[nodiscard]] constexpr std::int64_t problem_of(PromptId id) { return id & 0xffffffff; }
[[nodiscard]] constexpr std::int64_t sample_of(PromptId id) { return id >> 32; }

/// One problem, ready to be decoded.
struct Problem {
  std::int64_t index = 0;  ///< 0-based place in the benchmark.
  TaskRecord record;
  std::vector<TokenId> prompt;  ///< Templated, generation prompt included.
  std::string prompt_text;      ///< What `prompt` encodes, without a token that encoding adds.
  std::string hash;  ///< 16 hex digits: XXH3 over the record's fields and the prompt ids.
};

/// The first `limit` problems of a task.
struct ProblemSet {
  TaskChoice choice;  ///< Its label names the task in results.
  std::unique_ptr<Task> task;
  std::vector<Problem> problems;  ///< In the benchmark's order, at least one.
  std::int64_t max_new_tokens = 0;
  std::string hash;  ///< Over all problems' hashes.
  /// Added tokens that are stop texts of the task, such as "<|im_end|>".
  std::vector<TokenId> stop_tokens;

  /// The problem that a sample_id names. Throws InternalError for an index outside the set.
  [[nodiscard]] const Problem& problem(PromptId id) const;
  /// The request for the sample `id`. Throws as problem().
  [[nodiscard]] DecodeRequest request(PromptId id, const std::vector<TokenId>& eos_ids) const;
  /// The text of a completion up to its first stop token, without special tokens: of a stop text
  /// that is one nothing would be left at which to cut. What is no UTF-8 is replaced, so that what
  /// is graded is what is recorded.
  [[nodiscard]] std::string text_of(std::span<const TokenId> completion,
                                    const BytePairTokenizer& tokenizer) const;
};

struct TemplatedPrompt {
  std::string text;  ///< After the chat template.
  std::vector<TokenId> ids;
};

/// Prompts of tasks to token ids. The chat template is read with the first prompt that is a
/// conversation: styles of plain text do without, and a base model has none.
class TaskEncoder {
 public:
  /// Reads the tokenizer.
  explicit TaskEncoder(std::filesystem::path model_directory, ChatTemplateOptions options = {});

  [[nodiscard]] const BytePairTokenizer& tokenizer() const noexcept { return tokenizer_; }
  /// Throws as ChatTemplate::load.
  [[nodiscard]] TemplatedPrompt encode(const TaskPrompt& prompt);
  /// The template; nothing if no prompt so far was a conversation.
  [[nodiscard]] const std::optional<ChatTemplate>& chat_template() const noexcept {
    return chat_template_;
  }

 private:
  std::filesystem::path model_directory_;
  ChatTemplateOptions options_;
  BytePairTokenizer tokenizer_;
  std::optional<ChatTemplate> chat_template_;
};

/// Reads and encodes the task of an entry of evaluate.tasks. Throws ConfigError for an unknown task
/// or style, DataError naming file and line, or the problem whose ids do not fit `vocabulary_size`.
[[nodiscard]] ProblemSet load_problem_set(const std::string& entry, const EvaluateConfig& config,
                                          TaskEncoder& encoder, std::int64_t vocabulary_size);

}  // namespace jforge
