#include "checkpoints/identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/bounded_json.h"
#include "runtime/error.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {
constexpr const char* kAbsent = "absent";
/// Unlike configuration keys, it has no dot.
constexpr const char* kAccepted = "accepted";

std::string value_of(const Identity& identity, const std::string& key) {
  const auto found = identity.find(key);
  return found == identity.end() ? kAbsent : found->second;
}

bool is_accepted(const IdentityDifference& difference, const std::vector<std::string>& keys,
                 const std::vector<IdentityDifference>& earlier) {
  const auto names = [&](const std::string& key) {
    return difference.key == key || difference.key.starts_with(key + ".");
  };
  if (std::ranges::any_of(keys, names)) {
    return true;
  }
  std::string value = difference.recorded;
  for (const IdentityDifference& change : earlier) {
    if (change.key == difference.key && change.recorded == value) {
      value = change.present;
    }
  }
  return value == difference.present;
}
}  // namespace

KeyChange Identity::change_of(const std::string& key) const {
  if (key == kPromptsDigest || key == kModelHash || key == kTokenizerHash) {
    return {.fixed_from = FixedFrom::import};
  }
  const auto found = changes.find(key);
  return found == changes.end() ? KeyChange() : found->second;
}

std::vector<IdentityDifference> identity_differences(const Identity& recorded,
                                                     const Identity& present) {
  Identity keys = recorded;
  keys.insert(present.begin(), present.end());
  std::vector<IdentityDifference> differences;
  for (const auto& entry : keys) {
    const std::string& key = entry.first;
    IdentityDifference difference{key, value_of(recorded, key), value_of(present, key),
                                  present.change_of(key)};
    if (recorded.contains(key) != present.contains(key) ||
        difference.recorded != difference.present) {
      differences.push_back(std::move(difference));
    }
  }
  return differences;
}

void expect_same_identity(const std::string& holder, const Identity& recorded,
                          const Identity& present, const std::vector<std::string>& accepted,
                          const std::vector<IdentityDifference>& earlier) {
  std::string refused;
  std::string acceptance;
  for (const IdentityDifference& difference : identity_differences(recorded, present)) {
    if (!is_accepted(difference, accepted, earlier)) {
      if (difference.change.fixed_from != FixedFrom::import) {
        acceptance += " --accept-change " + difference.key;
      }
      refused += fmt::format("{}{}: {} → {}", refused.empty() ? "" : "; ", difference.key,
                             difference.recorded, difference.present);
    }
  }
  if (!refused.empty()) {
    if (!acceptance.empty()) {
      acceptance = ", or, where only what is not made yet depends on them," + acceptance +
                   " (rounds.3 names all of the third's)";
    }
    throw ConfigError(holder + " belongs to another configuration: " + refused +
                      "; use another run.directory" + acceptance);
  }
}

std::string IdentityRecord::to_json() const {
  nlohmann::json document(identity);
  if (!accepted.empty()) {
    nlohmann::json& changes = document[kAccepted] = nlohmann::json::array();
    for (const IdentityDifference& change : accepted) {
      changes.push_back({{"key", change.key}, {"from", change.recorded}, {"to", change.present}});
    }
  }
  return seal_json(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

IdentityRecord IdentityRecord::from_json(const std::string& text, const std::string& source) {
  refuse_broken_seal(text, source);
  const auto document = try_bounded_json(text);
  if (!document.is_object()) {
    throw DataError(source + " is damaged: it is not a JSON object");
  }
  IdentityRecord record;
  try {
    for (const auto& [key, value] : document.items()) {
      if (key == kSealKey) {
        continue;
      }
      if (key != kAccepted) {
        if (key.find('.') == std::string::npos) {
          throw DataError(fmt::format("{} is damaged: it has no key {}", source, key));
        }
        record.identity.emplace(key, value.get<std::string>());
        continue;
      }
      for (const auto& change : value) {
        record.accepted.push_back({change.at("key").get<std::string>(),
                                   change.at("from").get<std::string>(),
                                   change.at("to").get<std::string>()});
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{} is damaged: {}", source, error.what()));
  }
  return record;
}

IdentityRecord continue_identity(const std::string& holder, const IdentityRecord& before,
                                 const Identity& present,
                                 const std::vector<std::string>& accepted_keys,
                                 bool prompts_imported) {
  expect_same_identity(holder, before.identity, present, accepted_keys);
  IdentityRecord after{present, before.accepted};
  for (IdentityDifference& difference : identity_differences(before.identity, present)) {
    if (prompts_imported && difference.change.fixed_from == FixedFrom::import) {
      throw ConfigError(fmt::format(
          "{} has imported its prompts already, {} cannot change any more ({} → {}); use another "
          "run.directory",
          holder, difference.key, difference.recorded, difference.present));
    }
    difference.change = {};
    after.accepted.push_back(std::move(difference));
  }
  return after;
}

}  // namespace jforge
