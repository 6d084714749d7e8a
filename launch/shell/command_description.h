#pragma once

/// The command line as data, read from its parser: what shell completions and the man page are made
/// of, so that neither can differ from what is parsed.

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace jforge {

/// What the value of an option or argument is, apart from the words that it may be.
enum class ValueKind : std::uint8_t {
  none,         ///< There is no value: a flag; or nothing but one of `words` fits.
  text,         ///< Numbers too: nothing can be offered.
  config_file,  ///< A TOML file.
  file,         ///< Or a directory, if the type name is PATH.
  directory,
  setting,           ///< section.key=value of a configuration.
  decoding_setting,  ///< key=value of a decoding method.
  key,               ///< section.key that belongs to a run's identity.
};

/// An option, or an argument without a name of its own.
struct OptionDescription {
  std::vector<std::string> names;  ///< "-h", "--help"; of an argument "config" alone.
  std::string help;
  std::string placeholder;   ///< For the value, as --help shows it: "DIR", "ar|jacobi"; else empty.
  std::string default_text;  ///< Empty where there is none.
  ValueKind kind = ValueKind::none;
  std::vector<std::string> words;  ///< What the value may be, or may be as well.
  bool list = false;               ///< Several values, separated by commas.
  bool required = false;

  [[nodiscard]] bool takes_value() const { return !placeholder.empty(); }
};

/// The program, or a command.
struct CommandDescription {
  std::vector<std::string> path;  ///< "jforge", "probe", "logits".
  std::string help;
  std::string group;  ///< Of commands: the heading over it in --help.
  std::vector<OptionDescription> arguments;
  std::vector<OptionDescription> options;
  std::vector<CommandDescription> commands;

  [[nodiscard]] const std::string& name() const { return path.back(); }
};

/// Describes the parser `app` and its commands. Options without a group (for tests) are left out.
/// The type name of an option says what its value is: words in lower case and a placeholder in
/// upper case, separated by bars. InternalError for a placeholder that is not known.
[[nodiscard]] CommandDescription describe(const CLI::App& app);

/// `command` and all below it, in the order of the parser.
[[nodiscard]] std::vector<const CommandDescription*> all_commands(
    const CommandDescription& command);

/// "jforge probe logits".
[[nodiscard]] std::string path_text(const CommandDescription& command);

}  // namespace jforge
