#include <fmt/format.h>

#include "launch/shell/shell_completion_internal.h"

namespace jforge {

namespace {

constexpr const char* kPreface = R"zsh(#compdef jforge
# zsh completion for jforge, made by `jforge completion zsh`.
# To try it, behind compinit: source <(jforge completion zsh)
)zsh";

constexpr const char* kMachine = R"zsh(
_jforge_keys() {  # NAME [SUFFIX]: the keys of a configuration; rounds are counted as typed
  local -a keys
  _jforge_keys_$1
  [[ $PREFIX =~ '^rounds\.([0-9]+)' ]] && keys=(${keys/#rounds.1/rounds.$match[1]})
  _describe -t keys 'configuration key' keys ${2:+-S} ${2:+$2}
}

_jforge_list() {  # values separated by commas
  compset -P '*,'
  compadd -q -S , -- "$@"
}

_jforge_words_or() {  # FILES WORD …
  _alternative "words:word:($argv[2,-1])" "files:file:$1"
}

_jforge_settings() {  # NAME: key=value
  local key
  local -a values
  if compset -P 1 '*='; then
    key=${${IPREFIX%=}##*=}
    _jforge_key_values "$1 ${key/#rounds.<->./rounds.1.}"
    (( $#values )) && compadd -a values || _message "value of $key"
  else
    _jforge_keys $1 =
  fi
}
)zsh";

constexpr const char* kEnd = R"zsh(
# Sourced it is told to zsh here, else found through its first line.
if [[ $funcstack[1] == _jforge ]]; then _jforge "$@"; else compdef _jforge jforge; fi
)zsh";

// Text within the parts of a specification of _arguments, or before the colon of _describe.
std::string escaped(std::string text) {
  for (const char* sign : {"\\", ":", "[", "]"}) {
    text = replaced(std::move(text), sign, std::string("\\") + sign);
  }
  return text;
}

// An action that is called as it stands: behind a blank nothing is added to its arguments.
std::string own(const std::string& call) { return " " + call; }

std::string action(const CommandDescription& command, const OptionDescription& option) {
  const std::string words = fmt::format("{}", fmt::join(option.words, " "));
  if (option.list) {
    return own("_jforge_list " + words);
  }
  std::string files;
  switch (option.kind) {
    case ValueKind::none:
    case ValueKind::text:
      return words.empty() ? " " : "(" + words + ")";
    case ValueKind::config_file:
      files = "_files -g \"*.toml\"";
      break;
    case ValueKind::file:
    case ValueKind::path:
      files = "_files";
      break;
    case ValueKind::directory:
      files = "_files -/";
      break;
    case ValueKind::setting:
      return own("_jforge_settings " + keys_name(command));
    case ValueKind::decoding_setting:
      return own(std::string("_jforge_settings ") + kDecoding);
    case ValueKind::key:
      return own("_jforge_keys " + keys_name(command) + "_identity");
  }
  return words.empty() ? files : own(fmt::format("_jforge_words_or '{}' {}", files, words));
}

std::string option_specification(const CommandDescription& command,
                                 const OptionDescription& option) {
  const bool leaves = !option.takes_value() &&
                      (option.names.back() == "--help" || option.names.back() == "--version");
  std::string text;
  for (const std::string& name : option.names) {
    text += " \\\n    " +
            shell_quoted((leaves              ? "(- *)"
                          : option.repeatable ? "*"
                                              : "") +
                         name + (option.takes_value() && name.starts_with("--") ? "=" : "") + "[" +
                         escaped(option.help) + "]" +
                         (option.takes_value()
                              ? ":" + escaped(option.placeholder) + ":" + action(command, option)
                              : ""));
  }
  return text;
}

std::string describe_in_zsh(const CommandDescription& command) {
  const bool parent = !command.commands.empty();
  std::string text = fmt::format("\n{}() {{\n", "_" + path_text(command, "_"));
  text += parent ? "  local curcontext=$curcontext state line\n  local -a commands\n"
                   "  _arguments -C"
                 : "  _arguments";
  for (const OptionDescription& option : command.options) {
    text += option_specification(command, option);
  }
  for (const OptionDescription& argument : command.arguments) {
    text += " \\\n    " + shell_quoted((argument.required ? ":" : "::") + escaped(argument.help) +
                                       ":" + action(command, argument));
  }
  if (parent) {
    text +=
        " \\\n    '1:command:->command' '*::argument:->argument'\n  case $state in\n"
        "    command)\n      commands=(\n";
    std::string branches;
    for (const CommandDescription& sub : command.commands) {
      text += fmt::format("        {}\n", shell_quoted(sub.name() + ":" + sub.help));
      branches += fmt::format("        {}) _{} ;;\n", sub.name(), path_text(sub, "_"));
    }
    text +=
        "      )\n      _describe -t commands command commands ;;\n"
        "    argument)\n      case $line[1] in\n" +
        branches + "      esac ;;\n  esac";
  }
  return text + "\n}\n";
}

std::string keys_functions() {
  std::string text;
  std::string values = "\n_jforge_key_values() {\n  case $1 in\n";
  for (const NamedKeys& config : named_keys()) {
    std::string all;
    std::string identity;
    bool rounds = false;
    for (const ConfigKey& key : config.keys) {
      const std::string line = "\n    " + shell_quoted(key.path + ":" + short_meaning(key));
      all += line;
      identity += key.identity ? line : "";
      rounds = rounds || key.path.starts_with("rounds.1.");
      if (!key.words.empty()) {
        values +=
            fmt::format("    {}) values=({}) ;;\n", shell_quoted(config.name + " " + key.path),
                        fmt::join(key.words, " "));
      }
    }
    // A whole round's keys may be accepted together.
    identity += rounds ? "\n    'rounds.1:All keys of this round'" : "";
    text += fmt::format(
        "\n_jforge_keys_{0}() {{\n  keys=({1}\n  )\n}}\n"
        "\n_jforge_keys_{0}_identity() {{\n  keys=({2}\n  )\n}}\n",
        config.name, all, identity);
  }
  return text + values + "  esac\n}\n";
}

}  // namespace

std::string zsh_completion(const CommandDescription& program) {
  std::string text = kPreface + keys_functions() + kMachine;
  for (const CommandDescription* command : all_commands(program)) {
    text += describe_in_zsh(*command);
  }
  return text + kEnd;
}

}  // namespace jforge
