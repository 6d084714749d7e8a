#pragma once

/// Prompt files in, prompt store out: choose, order, sample, template, tokenise, bound.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts/prompt_encoder.h"
#include "data/prompts/prompt_reader.h"

namespace jforge {

/// Which prompts are taken when there are more than `limit`.
enum class PromptSample : std::uint8_t {
  first,   ///< The first ones, in the order of `order_by` (file order without it).
  random,  ///< A seeded random choice; the chosen keep their order.
};

/// Of a `template` key, `key` by name: ConfigError for anything but "chatml".
void expect_chat_template(const std::string& key, const std::optional<std::string>& name);

/// Section [prompts] of the configuration.
struct PromptImportConfig {
  std::vector<std::string> files;  ///< Paths or glob patterns; at least one.
  std::string field = "prompt";    ///< Field name or JSON pointer; "A | B": the first one there is.
  std::optional<std::string> text;  ///< Instead of `field`: "… {FIELD} …", each as `field`.
  /// Of the reference answer, as `field`; default: none are stored. A record may lack it.
  std::optional<std::string> answer_field;
  std::vector<std::string> keep_if;     ///< "PATH OP VALUE", all must hold.
  std::optional<std::string> order_by;  ///< Path; "-PATH" descending. Stable.
  PromptSample sample = PromptSample::first;
  std::uint64_t seed = 0;             ///< Of the random sample.
  std::optional<std::string> system;  ///< System text; default: the template's own.
  std::optional<std::string>
      chat_template;  ///< "chatml": in the place of one that is not understood.
  TemplateArguments template_arguments;
  std::optional<std::int64_t> limit;              ///< Prompts to keep at most.
  std::optional<std::int64_t> max_prompt_tokens;  ///< Longer templated prompts are dropped.
  std::int64_t max_bad_records = 1000;            ///< More unreadable records stop the import.
  double max_bad_fraction = 0.1;  ///< So does a larger share of them (from 100 records on).
  std::optional<int> threads;     ///< Default: all cores.
  /// No key of the section: the digest of earlier prompts that are lost. An import of others is
  /// refused before anything is written in their place.
  std::optional<std::string> expected_digest;

  /// ConfigError naming the field that is missing, out of range or malformed.
  void validate() const;
  /// Options for every conversation of a run, including its evaluation.
  [[nodiscard]] ChatTemplateOptions template_options() const {
    return {chat_template == "chatml", template_arguments};
  }
};

/// What an import did.
struct ImportReport {
  std::vector<std::string> files;  ///< As matched, sorted within a pattern.
  std::int64_t records = 0;
  std::int64_t bytes = 0;              ///< Uncompressed.
  std::vector<BadRecord> unreadable;   ///< Quarantined.
  std::vector<DroppedByRule> dropped;  ///< In the order applied.
  std::int64_t kept = 0;
  std::int64_t tokens = 0;  ///< Of the kept prompts.
  /// Kept prompts whose text spells control tokens of the tokenizer (PROMPT_FORMAT.md).
  std::int64_t with_control_tokens = 0;
  std::optional<std::int64_t> with_answers;  ///< Kept prompts with one; where there is a field.
  double seconds = 0;

  /// Returns the number of records dropped by each rule, and the first unreadable record with its
  /// reason; empty if nothing was dropped.
  [[nodiscard]] std::string losses() const;

  /// Everything but `seconds` as JSON text (stored with the prompts; equal imports, equal text).
  [[nodiscard]] std::string to_json() const;
};

/// How far an import is.
struct ImportProgress {
  std::int64_t records = 0, bytes = 0;       ///< Read so far.
  std::int64_t encoded = 0, candidates = 0;  ///< Tokenised so far, of at most.
};

/// 16 hex digits over the settings that decide which prompts come out, and the encoder's identity.
[[nodiscard]] std::string import_identity(const PromptImportConfig& config,
                                          const PromptEncoder& encoder);

/// Imports prompts into the store `store_path`, which is published at the end. Rules apply in this
/// order: unreadable, each keep_if, empty text, duplicate text (by hash; the first in order stays),
/// max_prompt_tokens, limit. Quarantined records are listed in `store_path` + ".quarantine".
/// `progress` may throw to stop the import; nothing is published then. DataError when nothing is
/// kept (with the counts), when too much is unreadable, or a file cannot be read.
ImportReport import_prompts(const PromptImportConfig& config, const PromptEncoder& encoder,
                            const std::filesystem::path& store_path,
                            const std::function<void(const ImportProgress&)>& progress = {});

}  // namespace jforge
