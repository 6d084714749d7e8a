#pragma once

/// A run's identity: its identity configuration keys and input hashes, recorded in the run
/// directory and every checkpoint.

#include <map>
#include <string>
#include <vector>

namespace jforge {

/// Digest of the imported prompts; absent before the import.
inline constexpr const char* kPromptsDigest = "prompts.digest";

/// Key to value, both as the configuration prints them.
using Identity = std::map<std::string, std::string>;

struct IdentityDifference {
  std::string key;
  std::string recorded;  ///< "absent" if that side lacks the key.
  std::string present;   ///< Likewise.

  bool operator==(const IdentityDifference&) const = default;
};

[[nodiscard]] std::vector<IdentityDifference> identity_differences(const Identity& recorded,
                                                                   const Identity& present);

/// Throws ConfigError naming `holder` and both values of each differing key. Ignores keys in
/// `accepted` ("rounds.2" covers "rounds.2.…") and differences that the chronological changes in
/// `earlier` explain.
void expect_same_identity(const std::string& holder, const Identity& recorded,
                          const Identity& present, const std::vector<std::string>& accepted,
                          const std::vector<IdentityDifference>& earlier = {});

/// Returns whether imported prompts depend on the key, so that the import fixes it.
[[nodiscard]] bool is_fixed_by_import(const std::string& key);

/// identity.json: the present identity and all accepted changes, so that checkpoints from before a
/// change stay valid.
struct IdentityRecord {
  Identity identity;
  std::vector<IdentityDifference> accepted;  ///< Chronological.

  /// Returns a sealed JSON object (runtime/text_seal.h): keys to values, and changes under
  /// "accepted".
  [[nodiscard]] std::string to_json() const;
  /// Throws DataError naming `source` if damaged. Accepts unsealed text of earlier versions.
  [[nodiscard]] static IdentityRecord from_json(const std::string& text, const std::string& source);

  bool operator==(const IdentityRecord&) const = default;
};

/// Returns the record after `holder` continues as `present`. Throws ConfigError for a difference
/// that is not accepted or that the import has fixed.
[[nodiscard]] IdentityRecord continue_identity(const std::string& holder,
                                               const IdentityRecord& before,
                                               const Identity& present,
                                               const std::vector<std::string>& accepted_keys,
                                               bool prompts_imported);

}  // namespace jforge
