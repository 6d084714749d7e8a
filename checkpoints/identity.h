#pragma once

/// The identity of a run: its identity configuration keys and input hashes, recorded in the run
/// directory and every checkpoint. All comparisons of identities are here.

#include <map>
#include <string>
#include <vector>

namespace jforge {

/// Digest of the imported prompts; part of the identity after the import.
inline constexpr const char* kPromptsDigest = "prompts.digest";

/// Key to value, both as the configuration prints them.
using Identity = std::map<std::string, std::string>;

struct IdentityDifference {
  std::string key;
  std::string recorded;  ///< "absent" if this side lacks the key.
  std::string present;   ///< Likewise.

  bool operator==(const IdentityDifference&) const = default;
};

/// Returns all differences, by key.
[[nodiscard]] std::vector<IdentityDifference> identity_differences(const Identity& recorded,
                                                                   const Identity& present);

/// Throws ConfigError naming `holder`, the owner of the recorded identity, with both values of each
/// differing key. Ignores keys in `accepted` ("rounds.2" covers "rounds.2.…") and differences that
/// the changes in `earlier`, in chronological order, produce.
void expect_same_identity(const std::string& holder, const Identity& recorded,
                          const Identity& present, const std::vector<std::string>& accepted,
                          const std::vector<IdentityDifference>& earlier = {});

/// Returns whether imported prompts depend on the key: prompts.*, tokenizer.*, run.seed and model.*
/// except model.decode_weights. Such a key is fixed after the import.
[[nodiscard]] bool is_fixed_by_import(const std::string& key);

/// identity.json of a run directory: the present identity and every accepted change, so that
/// checkpoints from before a change remain valid.
struct IdentityRecord {
  Identity identity;
  std::vector<IdentityDifference> accepted;  ///< In chronological order.

  /// Returns one sealed JSON object (runtime/text_seal.h) with a final newline: key to value, and
  /// the list of changes under "accepted".
  [[nodiscard]] std::string to_json() const;
  /// Throws DataError naming `source` if the seal is broken or the text is not such an object.
  /// Accepts unsealed text from earlier versions.
  [[nodiscard]] static IdentityRecord from_json(const std::string& text, const std::string& source);

  bool operator==(const IdentityRecord&) const = default;
};

/// Returns the record of `holder`, so far `before`, when it continues as `present`. Throws
/// ConfigError for a difference outside `accepted_keys`, or after the import one that
/// is_fixed_by_import().
[[nodiscard]] IdentityRecord continue_identity(const std::string& holder,
                                               const IdentityRecord& before,
                                               const Identity& present,
                                               const std::vector<std::string>& accepted_keys,
                                               bool prompts_imported);

}  // namespace jforge
