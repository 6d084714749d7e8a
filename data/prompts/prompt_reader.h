#pragma once

/// Reads prompt texts out of JSON files: field, conditions, quarantine of what cannot be read.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts/prompt_encoder.h"
#include "data/prompts/record_filter.h"

namespace jforge {

/// A record that could not be read.
struct BadRecord {
  std::string file;
  std::int64_t line = 0;
  std::string reason;
};

/// How many records a rule dropped.
struct DroppedByRule {
  std::string rule;
  std::int64_t count = 0;
};

/// A prompt that passed the conditions.
struct PromptCandidate {
  Conversation messages;  ///< Texts exactly as in the record, white space included.
  OrderKey key;
  std::int32_t file = 0;  ///< Index into the list of files.
  std::int64_t line = 0;  ///< From 1.
};

struct PromptReaderOptions {
  std::vector<std::filesystem::path> files;
  std::string field;  ///< Field name or JSON pointer of the text or of a list of chat messages; "A
                      ///< | B": A where the record has it.
  std::optional<std::string> text;      ///< Instead of `field`: "… {FIELD} …", a user message.
  std::vector<std::string> keep_if;     ///< Rules of RecordFilter, applied in this order.
  std::optional<std::string> order_by;  ///< Path whose value becomes the candidates' key.
  std::optional<std::string>
      answer_field;  ///< Of the reference answer, a text or number; as `field`.
  std::int64_t max_bad_records = 1000;
  double max_bad_fraction = 0.1;  ///< Looked at once 100 records have been read.
};

struct PromptReaderResult {
  std::vector<PromptCandidate> candidates;  ///< In file order.
  /// Of the candidates, with an answer_field; empty texts where the record has none.
  std::vector<std::string> answers;
  std::vector<BadRecord> bad;
  std::vector<DroppedByRule> dropped;  ///< One for each rule in order, then "empty text".
  std::int64_t records = 0;            ///< Bad ones included.
  std::int64_t bytes = 0;              ///< Uncompressed.
};

/// DataError naming the first of the `bad` records where they are more than `options` allow of
/// `records`.
void expect_few_bad(const PromptReaderOptions& options, const std::vector<BadRecord>& bad,
                    std::int64_t records);

/// A prompt's text may have so many bytes: about a million tokens, more than any model takes.
inline constexpr std::size_t kMaxPromptBytes = std::size_t{4} << 20;

/// `text`, a record that strict JSON refuses, with ".0" behind each integer of 19 digits and more,
/// which makes it a number of double precision, and null for the NaN and Infinity that Python's
/// json writes: a field that nobody asks for must not cost the record.
[[nodiscard]] std::string strict_json(std::string_view text);

/// Reads all files. A text is a user message. Of a list of chat messages ({"role", "content"}, or
/// {"from", "value"} with human and gpt) the prompt is all up to the last user message; an answer
/// behind it is left out. A content that is a list of text parts ({"type": "text", "text"}) is
/// their texts joined. With `text`, a null field counts as empty. A record that is not valid JSON
/// or UTF-8, is longer than 64 MiB, has neither at the field, or texts longer than kMaxPromptBytes
/// together, is quarantined; what is no strict JSON number is read by strict_json(). `progress`,
/// when given, is called about once a megabyte with records and bytes so far. DataError when more
/// records are bad than allowed (naming the first), or a file cannot be read; ConfigError for
/// malformed rules.
[[nodiscard]] PromptReaderResult read_prompts(
    const PromptReaderOptions& options,
    const std::function<void(std::int64_t records, std::int64_t bytes)>& progress = {});

}  // namespace jforge
