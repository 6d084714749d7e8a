#pragma once

/// A task's problems, templated and encoded for one model.

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

/// sample · 2^32 + index: a sample's id, and so its random stream, does not depend on the number of
/// samples.
[[nodiscard]] constexpr PromptId sample_id(std::int64_t index, std::int64_t sample) {
  return (sample << 32) | index;
}
[[nodiscard]] constexpr std::int64_t problem_of(PromptId id) { return id & 0xffffffff; }
[[nodiscard]] constexpr std::int64_t sample_of(PromptId id) { return id >> 32; }

struct Problem {
  std::int64_t index = 0;  ///< 0-based, in the benchmark.
  TaskRecord record;
  std::vector<TokenId> prompt;  ///< Templated, with the generation prompt.
  std::string prompt_text;      ///< `prompt` without tokens added by encoding.
  std::string hash;             ///< 16 hex digits over record fields and prompt ids.
};

/// The first `limit` problems.
struct ProblemSet {
  TaskChoice choice;  ///< The label names the task in results.
  std::unique_ptr<Task> task;
  std::vector<Problem> problems;  ///< In the benchmark's order; not empty.
  std::int64_t max_new_tokens = 0;
  std::string hash;  ///< Over the problems' hashes.
  /// Stop texts that are added tokens, such as "<|im_end|>".
  std::vector<TokenId> stop_tokens;

  /// Throws InternalError for an index outside the set.
  [[nodiscard]] const Problem& problem(PromptId id) const;
  [[nodiscard]] DecodeRequest request(PromptId id, const std::vector<TokenId>& eos_ids) const;
  /// Decodes up to the first stop token, without special tokens, in which a stop text would be
  /// lost. Replaces invalid UTF-8, so that the graded text is the recorded one.
  [[nodiscard]] std::string text_of(std::span<const TokenId> completion,
                                    const BytePairTokenizer& tokenizer) const;
};

struct TemplatedPrompt {
  std::string text;
  std::vector<TokenId> ids;
};

/// Encodes prompts. Loads the chat template only for the first conversation, because base models
/// may have none.
class TaskEncoder {
 public:
  explicit TaskEncoder(std::filesystem::path model_directory, ChatTemplateOptions options = {});

  [[nodiscard]] const BytePairTokenizer& tokenizer() const noexcept { return tokenizer_; }
  /// Throws as ChatTemplate::load.
  [[nodiscard]] TemplatedPrompt encode(const TaskPrompt& prompt);
  /// Nothing before the first conversation.
  [[nodiscard]] const std::optional<ChatTemplate>& chat_template() const noexcept {
    return chat_template_;
  }

 private:
  std::filesystem::path model_directory_;
  ChatTemplateOptions options_;
  BytePairTokenizer tokenizer_;
  std::optional<ChatTemplate> chat_template_;
};

/// Loads and encodes an entry of evaluate.tasks. Throws ConfigError for an unknown task or style;
/// DataError naming file and line, or a problem with ids outside the vocabulary.
[[nodiscard]] ProblemSet load_problem_set(const std::string& entry, const EvaluateConfig& config,
                                          TaskEncoder& encoder, std::int64_t vocabulary_size);

}  // namespace jforge
