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
  std::vector<std::string> answers;  ///< By prompt, each may be empty; or no elements at all.
  std::string identity;              ///< 16 hex digits.
  std::string report;                ///< JSON text.
};

/// Returns the digest of a store of these prompts, 16 hex digits.
[[nodiscard]] std::string prompts_digest(const std::vector<StoredPrompt>& prompts);

/// Publishes a store durably at `path`. Throws EnvironmentError if it cannot be written.
void write_prompt_store(const std::filesystem::path& path, const PromptStoreContent& content);

/// A published store: offsets in memory, tokens read on demand. tokens() may be called from several
/// threads.
class PromptStore {
 public:
  /// Opens a store after checking its seal and index. Throws DataError if it is damaged.
  static PromptStore open(const std::filesystem::path& path, SealCheck check = SealCheck::content);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  /// Throws DataError if the tokens cannot be read or `id` is outside of the store.
  [[nodiscard]] std::vector<TokenId> tokens(PromptId id) const;
  /// Returns the number of tokens. Throws DataError if `id` is outside of the store.
  [[nodiscard]] std::int64_t length(PromptId id) const;
  /// Returns the length of the longest prompt.
  [[nodiscard]] std::int64_t longest() const;
  /// 16 hex digits over all tokens.
  [[nodiscard]] const std::string& digest() const { return digest_; }
  /// 16 hex digits over the import's settings and encoder.
  [[nodiscard]] const std::string& identity() const { return identity_; }
  /// JSON text.
  [[nodiscard]] std::string report() const;
  /// XXH3-64 of each prompt's text before templating.
  [[nodiscard]] std::vector<std::uint64_t> text_hashes() const;

  [[nodiscard]] bool has_answers() const { return !answer_offsets_.empty(); }
  /// Returns a prompt's reference answer, empty if it has none. Throws as tokens().
  [[nodiscard]] std::string answer(PromptId id) const;

  /// Compares all tokens with the digest. Throws DataError on a mismatch.
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
