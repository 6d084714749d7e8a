#pragma once

/// A run's identity keys and input hashes, recorded in the run directory and every checkpoint.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace jforge {

/// Facts of an identity that are not configuration keys. Imported prompts depend on the first
/// three.
inline constexpr const char* kPromptsDigest = "prompts.digest";  ///< Absent before the import.
inline constexpr const char* kModelHash = "model.hash";
inline constexpr const char* kTokenizerHash = "tokenizer.hash";
/// "groups" if the run's first start chose BFloat16Sums::groups; later starts follow.
inline constexpr const char* kBFloat16SumsFact = "cpu.bfloat16_sums";

/// From when on a run cannot change a key any more, even with --accept-change.
enum class FixedFrom : std::uint8_t {
  never,
  import,  ///< After the import: the prompts depend on the key.
  round,   ///< In the middle of a round: the key decides which samples a step trains.
};
/// Consequences of a key's change for a run that has begun.
struct KeyChange {
  FixedFrom fixed_from = FixedFrom::never;
  bool other_loss = false;  ///< Losses before and after the change are not comparable.

  bool operator==(const KeyChange&) const = default;
};

/// Key to value, both as the configuration prints them.
struct Identity : std::map<std::string, std::string> {
  using map::map;
  explicit Identity(map values) : map(std::move(values)) {}

  /// By key; a key that is not there has the default. Neither recorded nor compared.
  std::map<std::string, KeyChange> changes = {};

  [[nodiscard]] KeyChange change_of(const std::string& key) const;
};

struct IdentityDifference {
  std::string key;
  std::string recorded;  ///< "absent" if that side lacks the key.
  std::string present;   ///< Likewise.
  KeyChange change = {};

  bool operator==(const IdentityDifference&) const = default;
};

/// Returns all differences, by key, with the key's KeyChange of `present`.
[[nodiscard]] std::vector<IdentityDifference> identity_differences(const Identity& recorded,
                                                                   const Identity& present);

/// Throws ConfigError naming `holder` and both values of each differing key. Ignores keys in
/// `accepted` ("rounds.2" covers "rounds.2.…") and differences that the chronological changes in
/// `earlier` explain.
void expect_same_identity(const std::string& holder, const Identity& recorded,
                          const Identity& present, const std::vector<std::string>& accepted,
                          const std::vector<IdentityDifference>& earlier = {});

/// identity.json: the present identity and all accepted changes, so that checkpoints from before a
/// change stay valid.
struct IdentityRecord {
  Identity identity;
  std::vector<IdentityDifference> accepted;  ///< Chronological.

  /// A sealed JSON object (runtime/text_seal.h): keys to values, and changes under "accepted".
  [[nodiscard]] std::string to_json() const;
  /// Throws DataError naming `source` if damaged. Accepts unsealed text of earlier versions.
  [[nodiscard]] static IdentityRecord from_json(const std::string& text, const std::string& source);

  bool operator==(const IdentityRecord&) const = default;
};

/// Throws ConfigError for a difference that is not accepted, and for an accepted one that
/// `prompts_imported` forbids (FixedFrom::import).
[[nodiscard]] IdentityRecord continue_identity(const std::string& holder,
                                               const IdentityRecord& before,
                                               const Identity& present,
                                               const std::vector<std::string>& accepted_keys,
                                               bool prompts_imported);

}  // namespace jforge
