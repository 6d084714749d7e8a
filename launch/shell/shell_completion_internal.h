#pragma once

/// What the scripts of the shells share.

#include <string>
#include <string_view>
#include <vector>

#include "launch/config/config_reference.h"
#include "launch/shell/command_description.h"

namespace jforge {

/// 'text' as bash and zsh read it.
[[nodiscard]] std::string shell_quoted(std::string_view text);

/// Replaces every `from` in `text`.
[[nodiscard]] std::string replaced(std::string text, std::string_view from, std::string_view to);

/// The first sentence of a key's meaning, without Markdown.
[[nodiscard]] std::string short_meaning(const ConfigKey& key);

/// A configuration's name in the scripts, and its keys; or kDecoding and those of all methods.
struct NamedKeys {
  std::string name;  ///< "run", "pretrain", "finetune" or kDecoding.
  std::vector<ConfigKey> keys;
};
inline constexpr const char* kDecoding = "decoding";
[[nodiscard]] std::vector<NamedKeys> named_keys();
/// The name of the configuration that the command reads.
[[nodiscard]] std::string keys_name(const CommandDescription& command);

[[nodiscard]] std::string bash_completion(const CommandDescription& program);
[[nodiscard]] std::string zsh_completion(const CommandDescription& program);
[[nodiscard]] std::string fish_completion(const CommandDescription& program);

}  // namespace jforge
