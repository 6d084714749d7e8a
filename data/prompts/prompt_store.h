#pragma once

/// The prompts of a run on disk (PROMPT_FORMAT.md).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/hdf5/hdf5_file.h"
#include "runtime/ids.h"

namespace jforge {

struct StoredPrompt {
  std::vector<TokenId> tokens;
  std::uint64_t text_hash = 0;  ///< XXH3-64 of the text before templating.
  std::int32_t source_file = 0;
  std::int64_t source_line = 0;
};

struct PromptStoreContent {
  std::vector<StoredPrompt> prompts;
  std::vector<std::string> answers;  ///< By prompt, possibly empty; or no elements at all.
  std::string identity;              ///< 16 hex digits.
  std::string report;                ///< JSON text.
};

/// Returns a store's digest, 16 hex digits.
[[nodiscard]] std::string prompts_digest(const std::vector<StoredPrompt>& prompts);

/// Publishes a store durably. Throws EnvironmentError on failure.
void write_prompt_store(const std::filesystem::path& path, const PromptStoreContent& content);

/// A published store with tokens read on demand. tokens() is thread-safe.
class PromptStore {
 public:
  /// Checks seal and index. Throws DataError if they are damaged.
  static PromptStore open(const std::filesystem::path& path, SealCheck check = SealCheck::content);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  /// Throws DataError if `id` is invalid or the tokens cannot be read.
  [[nodiscard]] std::vector<TokenId> tokens(PromptId id) const;
  /// Returns the number of tokens. Throws DataError if `id` is invalid.
  [[nodiscard]] std::int64_t length(PromptId id) const;
  /// Returns the length of the longest prompt.
  [[nodiscard]] std::int64_t longest() const;
  /// Returns 16 hex digits over all tokens.
  [[nodiscard]] const std::string& digest() const { return digest_; }
  /// Returns 16 hex digits over the import's settings and encoder.
  [[nodiscard]] const std::string& identity() const { return identity_; }
  /// Returns JSON text.
  [[nodiscard]] std::string report() const;
  /// Returns XXH3-64 of each prompt's text before templating.
  [[nodiscard]] std::vector<std::uint64_t> text_hashes() const;

  [[nodiscard]] bool has_answers() const { return !answer_offsets_.empty(); }
  /// Returns an empty text if there is none. Throws as tokens().
  [[nodiscard]] std::string answer(PromptId id) const;

  /// Throws DataError if the tokens do not match the digest.
  void verify() const;

 private:
  explicit PromptStore(Hdf5Reader file) : file_(std::move(file)) {}
  void check_id(PromptId id) const;

  Hdf5Reader file_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> answer_offsets_;  ///< Empty without answers.
  std::string digest_, identity_;
};

}  // namespace jforge
