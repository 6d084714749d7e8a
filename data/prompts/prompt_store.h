#pragma once

/// The prompts of a run on disk (PROMPT_FORMAT.md).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/hdf5/hdf5_file.h"
#include "runtime/ids.h"

namespace jforge {

/// One prompt on its way into a store.
struct StoredPrompt {
  std::vector<TokenId> tokens;
  std::uint64_t text_hash = 0;  ///< XXH3-64 of the text before templating.
  std::int32_t source_file = 0;
  std::int64_t source_line = 0;
};

/// What is stored beside the prompts.
struct PromptStoreContent {
  std::vector<StoredPrompt> prompts;
  std::vector<std::string> answers;  ///< References, by prompt; empty: none. Or no element at all.
  std::string identity;              ///< 16 hex digits.
  std::string report;                ///< JSON text.
};

/// The digest that a store of these prompts has, 16 hex digits.
[[nodiscard]] std::string prompts_digest(const std::vector<StoredPrompt>& prompts);

/// Publishes a prompt store durably under `path`. EnvironmentError when it cannot be written.
void write_prompt_store(const std::filesystem::path& path, const PromptStoreContent& content);

/// A published prompt store: offsets in memory, tokens read on demand. tokens() may be called from
/// several threads (HDF5's lock serialises them).
class PromptStore {
 public:
  /// Opens a store after checking its seal and its index. DataError naming the file and what is
  /// wrong.
  static PromptStore open(const std::filesystem::path& path, SealCheck check = SealCheck::content);

  /// Number of prompts.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  /// Token ids of a prompt. DataError when they cannot be read or the id is outside of the store.
  [[nodiscard]] std::vector<TokenId> tokens(PromptId id) const;
  /// Number of token ids of a prompt. DataError as above.
  [[nodiscard]] std::int64_t length(PromptId id) const;
  /// The most token ids of a prompt.
  [[nodiscard]] std::int64_t longest() const;
  /// 16 hex digits over all tokens; equal stores have equal digests.
  [[nodiscard]] const std::string& digest() const { return digest_; }
  /// 16 hex digits over what the import depended on.
  [[nodiscard]] const std::string& identity() const { return identity_; }
  /// The import's report, JSON text.
  [[nodiscard]] std::string report() const;
  /// Hash of a prompt's text before templating, for each prompt.
  [[nodiscard]] std::vector<std::uint64_t> text_hashes() const;

  /// Whether a prompt has a reference answer.
  [[nodiscard]] bool has_answers() const { return !answer_offsets_.empty(); }
  /// A prompt's reference answer, as its record has it; empty where there is none. DataError as
  /// above.
  [[nodiscard]] std::string answer(PromptId id) const;

  /// Reads everything against the digest. DataError naming what does not hold.
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
