#include <fmt/format.h>

#include "launch/shell/shell_completion_internal.h"

namespace jforge {

namespace {

constexpr const char* kPreface =
    R"bash(# bash completion for jforge, made by `jforge completion bash`.
# To try it: source <(jforge completion bash)
)bash";

// The lists are above: `_jforge_command COMMAND` sets commands and options, `_jforge_value COMMAND
// OPTION|NUMBER` sets kind, choices and list, `_jforge_keys NAME` and `_jforge_key_values NAME KEY`
// set choices.
constexpr const char* kMachine = R"bash(
# Candidates that begin with $cur, whole words as typed; readline replaces only what stands behind
# the last of its own word breaks, or from it on where that is @.
_jforge_reply() {
  local typed=${words[-1]} kept='' char i
  for ((i = 0; i < ${#typed}; i++)); do
    char=${typed:i:1}
    [[ $COMP_WORDBREAKS == *"$char"* ]] || continue
    case $char in
      [=:]) kept=${typed:0:i+1} ;;
      @) kept=${typed:0:i} ;;
    esac
  done
  local before=${typed:0:${#typed}-${#cur}} candidate
  for candidate in "$@"; do
    [[ $candidate == "$cur"* ]] || continue
    candidate=$before$candidate
    COMPREPLY+=("${candidate:${#kept}}")
  done
}

# Files and directories that begin with $cur: of files those whose names end in $1.
_jforge_reply_files() {
  compopt -o filenames 2>/dev/null
  local found name
  mapfile -t found < <(compgen -d -- "$cur"
                       [[ $1 == / ]] || compgen -f -- "$cur" | while IFS= read -r name; do
                         [[ ! -d $name && $name == *"$1" ]] && printf '%s\n' "$name"
                       done)
  _jforge_reply "${found[@]}"
}

_jforge_reply_keys() {  # NAME SUFFIX: the keys of a configuration; rounds are counted as typed
  local choices round
  _jforge_keys "$1"
  if [[ $cur =~ ^rounds\.([0-9]+) ]]; then
    round=${BASH_REMATCH[1]}
    choices=("${choices[@]/#rounds.1/rounds.$round}")
  fi
  [[ -n $2 ]] && compopt -o nospace 2>/dev/null
  _jforge_reply "${choices[@]/%/$2}"
}

_jforge_reply_value() {  # for option or argument $1 of $command
  local kind choices=() list key
  _jforge_value "$command" "$1"
  if [[ -n $list && $cur == *,* ]]; then
    choices=("${choices[@]/#/${cur%,*},}")
  fi
  _jforge_reply "${choices[@]}"
  case $kind in
    setting:*)
      if [[ $cur == *=* ]]; then
        key=${cur%%=*}
        _jforge_key_values "${kind#*:}" "$key"
        _jforge_reply "${choices[@]/#/$key=}"
      else
        _jforge_reply_keys "${kind#*:}" =
      fi ;;
    key:*) _jforge_reply_keys "${kind#*:}-identity" '' ;;
    config) _jforge_reply_files .toml ;;
    directory) _jforge_reply_files / ;;
    file) _jforge_reply_files '' ;;
  esac
}

_jforge() {
  COMPREPLY=()
  # Words as typed, up to the cursor: bash cuts them at = : @ too.
  local words=() line=${COMP_LINE:0:COMP_POINT} word glued i
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    glued=1
    [[ $i -eq 0 || $line == [[:space:]]* ]] && glued=
    line=${line#"${line%%[![:space:]]*}"}
    [[ $line == "$word"* ]] || word=$line
    line=${line#"$word"}
    if [[ -n $glued ]]; then words[-1]+=$word; else words+=("$word"); fi
  done

  local cur=${words[-1]} command=jforge option='' argument=1 commands options kind choices list
  for word in "${words[@]:1:${#words[@]}-2}"; do
    if [[ -n $option ]]; then
      option=
    elif [[ $word == -*=* ]]; then
      continue
    elif [[ $word == -* ]]; then
      kind=
      _jforge_value "$command" "$word"
      [[ -n $kind ]] && option=$word
    else
      _jforge_command "$command"
      if [[ " $commands " == *" $word "* ]]; then command+=" $word"; else argument=$((argument + 1)); fi
    fi
  done
  if [[ -z $option && $cur == --*=* ]]; then
    option=${cur%%=*}
    cur=${cur#*=}
  fi
  _jforge_command "$command"
  if [[ -n $option ]]; then
    _jforge_reply_value "$option"
  elif [[ $cur == -* ]]; then
    _jforge_reply $options
  elif [[ -n $commands ]]; then
    _jforge_reply $commands
  else
    _jforge_reply_value "$argument"
  fi
}

complete -F _jforge jforge
)bash";

std::string joined_names(const std::vector<OptionDescription>& options) {
  std::string names;
  for (const OptionDescription& option : options) {
    for (const std::string& name : option.names) {
      names += (names.empty() ? "" : " ") + name;
    }
  }
  return names;
}

std::string kind_name(const CommandDescription& command, ValueKind kind) {
  switch (kind) {
    case ValueKind::none:
    case ValueKind::text:
      break;
    case ValueKind::config_file:
      return "config";
    case ValueKind::file:
    case ValueKind::path:
      return "file";
    case ValueKind::directory:
      return "directory";
    case ValueKind::setting:
      return "setting:" + keys_name(command);
    case ValueKind::decoding_setting:
      return std::string("setting:") + kDecoding;
    case ValueKind::key:
      return "key:" + keys_name(command);
  }
  return "text";
}

// The branch of _jforge_value for one option or, by its number, argument.
std::string value_case(const CommandDescription& command, const OptionDescription& option,
                       const std::vector<std::string>& names) {
  std::string patterns;
  for (const std::string& name : names) {
    patterns += (patterns.empty() ? "" : " | ") + shell_quoted(path_text(command) + " " + name);
  }
  std::string set = "kind=" + kind_name(command, option.kind);
  if (!option.words.empty()) {
    set += fmt::format(" choices=({})", fmt::join(option.words, " "));
  }
  if (option.list) {
    set += " list=1";
  }
  return fmt::format("    {}) {} ;;\n", patterns, set);
}

std::string commands_function(const CommandDescription& program) {
  std::string text = "\n_jforge_command() {\n  commands= options=\n  case $1 in\n";
  for (const CommandDescription* command : all_commands(program)) {
    text += fmt::format("    {})\n", shell_quoted(path_text(*command)));
    if (!command->commands.empty()) {
      std::string names;
      for (const CommandDescription& sub : command->commands) {
        names += (names.empty() ? "" : " ") + sub.name();
      }
      text += fmt::format("      commands={}\n", shell_quoted(names));
    }
    text += fmt::format("      options={} ;;\n", shell_quoted(joined_names(command->options)));
  }
  return text + "  esac\n}\n";
}

std::string values_function(const CommandDescription& program) {
  std::string text = "\n_jforge_value() {\n  kind= choices=() list=\n  case \"$1 $2\" in\n";
  for (const CommandDescription* command : all_commands(program)) {
    for (const OptionDescription& option : command->options) {
      if (option.takes_value()) {
        text += value_case(*command, option, option.names);
      }
    }
    for (std::size_t i = 0; i < command->arguments.size(); ++i) {
      text += value_case(*command, command->arguments[i], {std::to_string(i + 1)});
    }
  }
  return text + "  esac\n}\n";
}

std::string keys_functions() {
  std::string keys = "\n_jforge_keys() {\n  choices=()\n  case $1 in\n";
  std::string values =
      "\n_jforge_key_values() {\n  choices=()\n  local key=$2\n"
      "  [[ $key =~ ^rounds\\.[0-9]+\\.(.*) ]] && key=rounds.1.${BASH_REMATCH[1]}\n"
      "  case \"$1 $key\" in\n";
  for (const NamedKeys& config : named_keys()) {
    std::string all;
    std::string identity;
    bool rounds = false;
    for (const ConfigKey& key : config.keys) {
      all += "\n      " + key.path;
      identity += key.identity ? "\n      " + key.path : "";
      rounds = rounds || key.path.starts_with("rounds.1.");
      if (!key.words.empty()) {
        values +=
            fmt::format("    {}) choices=({}) ;;\n", shell_quoted(config.name + " " + key.path),
                        fmt::join(key.words, " "));
      }
    }
    // A whole round's keys may be accepted together.
    identity += rounds ? "\n      rounds.1" : "";
    keys +=
        fmt::format("    {0}) choices=({1}\n    ) ;;\n    {0}-identity) choices=({2}\n    ) ;;\n",
                    config.name, all, identity);
  }
  return keys + "  esac\n}\n" + values + "  esac\n}\n";
}

}  // namespace

std::string bash_completion(const CommandDescription& program) {
  return kPreface + commands_function(program) + values_function(program) + keys_functions() +
         kMachine;
}

}  // namespace jforge
