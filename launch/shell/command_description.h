#pragma once

/// The command line as data, read from its parser, so that completions match it.

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace jforge {

/// Kind of a value that is not one of fixed words.
enum class ValueKind : std::uint8_t {
  none,         ///< A flag, or only `words` are valid.
  text,         ///< Text or a number: nothing to offer.
  config_file,  ///< A TOML file.
  file,         ///< Also a directory if the type name is PATH.
  directory,
  setting,           ///< section.key=value of a configuration.
  decoding_setting,  ///< key=value of a decoding method.
  key,               ///< section.key that belongs to a run's identity.
};

/// An option or a positional argument.
struct OptionDescription {
  std::vector<std::string> names;  ///< "-h", "--help"; "config" for an argument.
  std::string help;
  std::string placeholder;   ///< In --help: "DIR", "ar|jacobi"; empty for a flag.
  std::string default_text;  ///< May be empty.
  ValueKind kind = ValueKind::none;
  std::vector<std::string> words;  ///< Valid values, perhaps besides those of `kind`.
  bool list = false;               ///< Comma-separated.
  bool required = false;

  [[nodiscard]] bool takes_value() const { return !placeholder.empty(); }
};

struct CommandDescription {
  std::vector<std::string> path;  ///< "jforge", "probe", "logits".
  std::string help;
  std::string group;  ///< Heading in --help.
  std::vector<OptionDescription> arguments;
  std::vector<OptionDescription> options;
  std::vector<CommandDescription> commands;

  [[nodiscard]] const std::string& name() const { return path.back(); }
};

/// Describes `app` without ungrouped options (for tests). Option type names are lower-case words
/// and an upper-case placeholder, separated by bars. Throws InternalError for an unknown one.
[[nodiscard]] CommandDescription describe(const CLI::App& app);

/// Returns `command` and all below it, in the parser's order.
[[nodiscard]] std::vector<const CommandDescription*> all_commands(
    const CommandDescription& command);

/// Returns "jforge probe logits", for example.
[[nodiscard]] std::string path_text(const CommandDescription& command);

}  // namespace jforge
