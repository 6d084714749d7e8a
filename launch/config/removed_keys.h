#pragma once

/// Keys of earlier versions. Configurations that name one are refused with advice. The identity
/// keeps what decided results, with the value that holds now, so that runs which recorded it go on.

#include <cstddef>
#include <optional>
#include <string>

#include "checkpoints/identity.h"
#include "launch/config/field.h"
#include "workers/train/train_config.h"

namespace jforge {

/// Returns what to do instead of setting `path` ("rounds.2.endpoint"), if an earlier version had
/// it.
[[nodiscard]] std::optional<std::string> removed_key_advice(const std::string& path);

/// Adds the removed identity keys of `command` to `identity`; those of [[rounds]] once for each.
void record_removed_keys(Identity& identity, ConfigFor command, std::size_t rounds = 0,
                         Compat compat = Compat::none);

}  // namespace jforge
