#pragma once

/// What the list of fields (field.h) tells a person or an editor: the reference page, a JSON
/// schema, a commented configuration to start from, and the fields themselves.

#include <filesystem>
#include <string>
#include <vector>

#include "launch/config/field.h"

namespace jforge {

/// The page launch/configs/REFERENCE.md: every section and key with default, kind and meaning.
[[nodiscard]] std::string reference_markdown();

/// JSON schema (draft 7) of a configuration file, for editors: keys, types, names of enumerations,
/// meanings, and defaults. Unknown keys do not match it.
[[nodiscard]] std::string config_schema();

/// What a new configuration names from the start.
struct ConfigStart {
  std::string directory = "results/runs/my-model";        ///< run.directory
  std::string source = "models/Qwen2.5-0.5B-Instruct";    ///< model.source
  std::vector<std::string> files = {"my-prompts.jsonl"};  ///< prompts.files
};
/// A configuration of `jforge run` as TOML: what is required is set from `start`, together with a
/// first round; every other key stands as a comment with its default and meaning.
[[nodiscard]] std::string commented_config(const ConfigStart& start);

/// Every field of that configuration, with one round, in the order of the reference page.
[[nodiscard]] std::vector<ConfigField> config_fields(ConfigFor command);

}  // namespace jforge
