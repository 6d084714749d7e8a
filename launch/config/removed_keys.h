#pragma once

/// Keys of earlier versions. A configuration that names one is refused with advice. What decided
/// results stays in the identity with the value that holds now, so that runs which recorded that
/// value go on, and others are refused by name.

#include <cstddef>
#include <optional>
#include <string>

#include "checkpoints/identity.h"
#include "launch/config/field.h"
#include "workers/train/train_config.h"

namespace jforge {

/// Returns what to do instead of setting `path` ("rounds.2.endpoint"); nothing if no earlier
/// version had that key.
[[nodiscard]] std::optional<std::string> removed_key_advice(const std::string& path);

/// Adds the removed identity keys of `command` to `identity`; those of [[rounds]] once for each.
void record_removed_keys(Identity& identity, ConfigFor command, std::size_t rounds = 0,
                         Compat compat = Compat::none);

}  // namespace jforge
