#pragma once

/// The command line as data, read from its parser, so that completions and man page match it.

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace jforge {

/// Kind of an option's or argument's value, apart from fixed words.
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
  std::vector<std::string> names;  ///< "-h", "--help"; an argument has one: "config".
  std::string help;
  std::string placeholder;   ///< Of the value in --help: "DIR", "ar|jacobi"; empty for a flag.
  std::string default_text;  ///< Empty if there is none.
  ValueKind kind = ValueKind::none;
  std::vector<std::string> words;  ///< Valid values, perhaps besides those of `kind`.
  bool list = false;               ///< Several values, separated by commas.
  bool required = false;

  [[nodiscard]] bool takes_value() const { return !placeholder.empty(); }
};

/// The program or a command.
struct CommandDescription {
  std::vector<std::string> path;  ///< "jforge", "probe", "logits".
  std::string help;
  std::string group;  ///< Heading over the command in --help.
  std::vector<OptionDescription> arguments;
  std::vector<OptionDescription> options;
  std::vector<CommandDescription> commands;

  [[nodiscard]] const std::string& name() const { return path.back(); }
};

/// Describes the parser `app` and its commands, except options without a group (for tests). An
/// option's type name consists of lower-case words and an upper-case placeholder, separated by
/// bars. Throws InternalError for an unknown placeholder.
[[nodiscard]] CommandDescription describe(const CLI::App& app);

/// Returns `command` and all commands below it, in the parser's order.
[[nodiscard]] std::vector<const CommandDescription*> all_commands(
    const CommandDescription& command);

/// Returns the whole name, for example "jforge probe logits".
[[nodiscard]] std::string path_text(const CommandDescription& command);

}  // namespace jforge
