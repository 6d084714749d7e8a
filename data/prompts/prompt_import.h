#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts/prompt_encoder.h"
#include "data/prompts/prompt_reader.h"

namespace jforge {

enum class PromptSample : std::uint8_t {
  first,   ///< The first `limit` after sorting.
  random,  ///< A seeded random choice, in the same order.
};

/// Throws ConfigError naming `key` unless `name` is absent or "chatml".
void expect_chat_template(const std::string& key, const std::optional<std::string>& name);

/// Section [prompts] of the configuration.
struct PromptImportConfig {
  std::vector<std::string> files;   ///< Paths or glob patterns.
  std::string field = "prompt";     ///< Field name or JSON pointer; "A | B": the first that exists.
  std::optional<std::string> text;  ///< "… {FIELD} …", instead of `field`.
  std::optional<std::string> answer_field;  ///< Optional in each record.
  std::vector<std::string> keep_if;         ///< "PATH OP VALUE"; all must hold.
  std::optional<std::string> order_by;      ///< Path, or "-PATH" for descending order.
  PromptSample sample = PromptSample::first;
  std::uint64_t seed = 0;                    ///< For the random sample.
  std::optional<std::string> system;         ///< Default: the template's own.
  std::optional<std::string> chat_template;  ///< "chatml" replaces an unsupported template.
  TemplateArguments template_arguments;
  std::optional<std::int64_t> limit;              ///< Maximum number of prompts.
  std::optional<std::int64_t> max_prompt_tokens;  ///< Longer templated prompts are dropped.
  double max_bad_fraction = 0.1;                  ///< As in PromptReaderOptions.
  std::optional<int> threads;                     ///< Not a key. Default: all cores.
  /// Not a key: digest of lost prompts. Any other import is refused before anything is written.
  std::optional<std::string> expected_digest;

  /// Throws ConfigError naming the invalid field.
  void validate() const;
  /// Returns the options for every conversation of a run, including evaluation.
  [[nodiscard]] ChatTemplateOptions template_options() const {
    return {chat_template == "chatml", template_arguments};
  }
};

struct ImportReport {
  std::vector<std::string> files;
  std::int64_t records = 0;
  std::int64_t bytes = 0;              ///< Uncompressed.
  std::vector<BadRecord> unreadable;   ///< Listed in the quarantine file.
  std::vector<DroppedByRule> dropped;  ///< In the order applied.
  std::int64_t kept = 0;
  std::int64_t tokens = 0;  ///< Total of the kept prompts.
  /// Kept prompts whose text spells control tokens (PROMPT_FORMAT.md).
  std::int64_t with_control_tokens = 0;
  std::optional<std::int64_t> with_answers;  ///< Set only with an `answer_field`.
  double seconds = 0;

  /// Summarises dropped and unreadable records; empty if none.
  [[nodiscard]] std::string losses() const;

  /// Returns all but `seconds`; equal for equal imports.
  [[nodiscard]] std::string to_json() const;
};

struct ImportProgress {
  std::int64_t records = 0, bytes = 0;
  std::int64_t encoded = 0, candidates = 0;  ///< `candidates` is an upper bound of `encoded`.
};

/// Returns 16 hex digits over the encoder's identity and the settings that select prompts.
[[nodiscard]] std::string import_identity(const PromptImportConfig& config,
                                          const PromptEncoder& encoder);

/// Throws as match_files().
[[nodiscard]] PromptReaderOptions reader_options(const PromptImportConfig& config);

/// Imports prompts and publishes `store_path` at the end. Order of rules: unreadable, each keep_if,
/// empty text, duplicate text (by hash; the first stays), max_prompt_tokens, limit. Lists
/// unreadable records in `store_path` + ".quarantine". `progress` may throw to cancel without
/// publishing. Throws DataError if nothing is kept, too many records are unreadable, or a file
/// cannot be read.
ImportReport import_prompts(const PromptImportConfig& config, const PromptEncoder& encoder,
                            const std::filesystem::path& store_path,
                            const std::function<void(const ImportProgress&)>& progress = {});

}  // namespace jforge
