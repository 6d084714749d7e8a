#pragma once

/// The identity of a run: configuration keys of kind identity and the hashes of its inputs. A run
/// directory and every checkpoint record it; this is the one place that compares and refuses.

#include <map>
#include <string>
#include <vector>

namespace jforge {

/// Key of the imported prompts' digest: known, and part of the identity, once they are imported.
inline constexpr const char* kPromptsDigest = "prompts.digest";

/// Key to value, both as the configuration prints them.
using Identity = std::map<std::string, std::string>;

/// One key in which two identities differ.
struct IdentityDifference {
  std::string key;
  std::string recorded;  ///< "absent" where that side lacks the key.
  std::string present;   ///< Likewise.

  bool operator==(const IdentityDifference&) const = default;
};

/// All differences, by key; empty when the two agree.
[[nodiscard]] std::vector<IdentityDifference> identity_differences(const Identity& recorded,
                                                                   const Identity& present);

/// Throws ConfigError naming `holder` (what the recorded identity belongs to) and, key by key, the
/// recorded and the present value, but for the keys in `accepted` ("rounds.2" names all that
/// begin with "rounds.2.") and for what the changes in `earlier` (in the order in which they were
/// made) lead to.
void expect_same_identity(const std::string& holder, const Identity& recorded,
                          const Identity& present, const std::vector<std::string>& accepted,
                          const std::vector<IdentityDifference>& earlier = {});

/// Whether imported prompts depend on the key (prompts.*, tokenizer.*, run.seed and model.* but for
/// model.decode_weights): a run that has imported its prompts cannot change it any more.
[[nodiscard]] bool is_fixed_by_import(const std::string& key);

/// identity.json of a run directory: what the run is now, and every change that was accepted, so
/// that a checkpoint of before the change holds at later starts too.
struct IdentityRecord {
  Identity identity;
  std::vector<IdentityDifference> accepted;  ///< In the order in which they were made.

  /// One sealed JSON object (runtime/text_seal.h), newline at the end: key to value, and under
  /// "accepted" the list of changes.
  [[nodiscard]] std::string to_json() const;
  /// Throws DataError naming `source` when the seal is broken or the text is no such object; one
  /// without a seal is an earlier version's.
  [[nodiscard]] static IdentityRecord from_json(const std::string& text, const std::string& source);

  bool operator==(const IdentityRecord&) const = default;
};

/// What to record when `holder`, which was `before`, goes on as `present` with the changes of
/// `accepted_keys`. Throws ConfigError for a difference that is not accepted, and for an accepted
/// one that `prompts_imported` forbids (is_fixed_by_import).
[[nodiscard]] IdentityRecord continue_identity(const std::string& holder,
                                               const IdentityRecord& before,
                                               const Identity& present,
                                               const std::vector<std::string>& accepted_keys,
                                               bool prompts_imported);

}  // namespace jforge
