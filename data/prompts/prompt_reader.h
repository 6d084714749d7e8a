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
  Conversation messages;  ///< Exact texts, white space included.
  OrderKey key;
  std::int32_t file = 0;  ///< Index into the files.
  std::int64_t line = 0;  ///< From 1.
};

struct PromptReaderOptions {
  std::vector<std::filesystem::path> files;
  std::string field;  ///< As PromptImportConfig::field; a text or a list of chat messages.
  std::optional<std::string> text;   ///< "… {FIELD} …" instead of `field`, as a user message.
  std::vector<std::string> keep_if;  ///< RecordFilter rules, applied in order.
  std::optional<std::string> order_by;      ///< Path of the sort key.
  std::optional<std::string> answer_field;  ///< A text or number.
  std::int64_t max_bad_records = 1000;
  double max_bad_fraction = 0.1;  ///< Checked from 100 records on.
};

struct PromptReaderResult {
  std::vector<PromptCandidate> candidates;  ///< In file order.
  /// By candidate if there is an answer_field; may be empty.
  std::vector<std::string> answers;
  std::vector<BadRecord> bad;
  std::vector<DroppedByRule> dropped;  ///< One per rule in order, then "empty text".
  std::int64_t records = 0;            ///< Including bad ones.
  std::int64_t bytes = 0;              ///< Uncompressed.
};

/// Throws DataError naming the first bad record if there are more than `options` allow.
void expect_few_bad(const PromptReaderOptions& options, const std::vector<BadRecord>& bad,
                    std::int64_t records);

/// Maximum bytes of a prompt, about a million tokens.
inline constexpr std::size_t kMaxPromptBytes = std::size_t{4} << 20;

/// Returns a record that simdjson rejects with ".0" after integers of 19 and more digits, which
/// makes them doubles, and null for Python's NaN and Infinity, so that an unused field does not
/// cost the record.
[[nodiscard]] std::string strict_json(std::string_view text);

/// Reads all files. A text becomes a user message. From a list of chat messages ({"role",
/// "content"}, or {"from", "value"} with human and gpt) the prompt is everything up to the last
/// user message; lists of text parts ({"type": "text", "text"}) are joined. In `text`, null fields
/// count as empty.
/// Quarantined are records that are not JSON or UTF-8, are longer than 64 MiB, lack the field, or
/// have texts over kMaxPromptBytes. Calls `progress`, if given, about once a megabyte. Throws
/// DataError if too many records are bad or a file cannot be read, ConfigError if a rule is
/// malformed.
[[nodiscard]] PromptReaderResult read_prompts(
    const PromptReaderOptions& options,
    const std::function<void(std::int64_t records, std::int64_t bytes)>& progress = {});

}  // namespace jforge
