#pragma once

/// A benchmark task as one model sees it: its problems, put into the model's template and encoded.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tasks/task.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "model/decoding/sequence_decoder.h"
#include "runtime/ids.h"
#include "workers/evaluate/evaluate_config.h"

namespace jforge {

/// One problem, ready to be decoded.
struct Problem {
  std::int64_t index = 0;  ///< 0-based place in the benchmark; the request's id.
  TaskRecord record;
  std::vector<TokenId> prompt;  ///< Templated, generation prompt included.
  std::string hash;  ///< 16 hex digits: XXH3 over the record's fields and the prompt ids.
};

/// The first `limit` problems of a task.
struct ProblemSet {
  std::unique_ptr<Task> task;
  std::vector<Problem> problems;  ///< In the benchmark's order, at least one.
  std::int64_t max_new_tokens = 0;
  std::string hash;  ///< Over all problems' hashes.

  /// The request for problem `index`. Throws InternalError for an index outside the set.
  [[nodiscard]] DecodeRequest request(std::int64_t index,
                                      const std::vector<TokenId>& eos_ids) const;
};

/// Reads and encodes task `name`. Throws ConfigError for an unknown task or style, DataError naming
/// file and line, or the problem whose ids do not fit `vocabulary_size`.
[[nodiscard]] ProblemSet load_problem_set(const std::string& name, const EvaluateConfig& config,
                                          const BytePairTokenizer& tokenizer,
                                          const ChatTemplate& chat_template,
                                          std::int64_t vocabulary_size);

}  // namespace jforge
