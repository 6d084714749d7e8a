#pragma once

/// Reads prompts out of JSON, CSV and Parquet records.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts/prompt_encoder.h"
#include "data/prompts/record_filter.h"

namespace jforge {

struct BadRecord {
  std::string file;
  std::int64_t line = 0;
  std::string reason;
};

struct DroppedByRule {
  std::string rule;
  std::int64_t count = 0;
};

/// A prompt that passed the filters.
struct PromptCandidate {
  Conversation messages;  ///< White space included.
  OrderKey key;
  std::int32_t file = 0;
  std::int64_t line = 0;  ///< From 1.
};

struct PromptReaderOptions {
  std::vector<std::filesystem::path> files;
  std::string field;                        ///< A text or a list of chat messages.
  std::optional<std::string> text;          ///< "… {FIELD} …", instead of `field`.
  std::vector<std::string> keep_if;         ///< RecordFilter rules.
  std::optional<std::string> order_by;      ///< Path of the sort key.
  std::optional<std::string> answer_field;  ///< A text or number.
  /// A larger fraction of unreadable records, from 100 records on, stops the import; 0: any does.
  double max_bad_fraction = 0.1;
};

struct PromptReaderResult {
  std::vector<PromptCandidate> candidates;  ///< In file order.
  std::vector<std::string> answers;         ///< By candidate, if there is an answer_field.
  std::vector<BadRecord> bad;
  std::vector<DroppedByRule> dropped;  ///< One per rule in order, then "empty text".
  std::int64_t records = 0;            ///< Including bad ones.
  std::int64_t bytes = 0;              ///< Uncompressed.
};

/// Throws DataError naming the first bad record if there are too many.
void expect_few_bad(const PromptReaderOptions& options, const std::vector<BadRecord>& bad,
                    std::int64_t records);

inline constexpr std::size_t kMaxPromptBytes = std::size_t{4} << 20;  ///< About a million tokens.

/// Makes JSON that simdjson rejects strict: ".0" after integers of 19 and more digits, null for
/// Python's NaN and Infinity. Unused fields must not cost the record.
[[nodiscard]] std::string strict_json(std::string_view text);

/// Reads all files. A text becomes a user message. Of a list of chat messages ({"role", "content"},
/// or {"from", "value"} with human and gpt) everything up to the last user message is the prompt;
/// text parts ({"type": "text", "text"}) are joined. Null fields in `text` count as empty.
/// Records are bad if they are not JSON or UTF-8, exceed 64 MiB, lack the field, or have texts over
/// kMaxPromptBytes. Calls `progress` about once a megabyte. Throws DataError if too many records
/// are bad or a file cannot be read, ConfigError if a rule is malformed.
[[nodiscard]] PromptReaderResult read_prompts(
    const PromptReaderOptions& options,
    const std::function<void(std::int64_t records, std::int64_t bytes)>& progress = {});

}  // namespace jforge
