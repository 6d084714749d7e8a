#include "launch/shell/shell_completion.h"

#include <fmt/format.h>

#include "launch/config/config_reference.h"
#include "model/decoding/decoding_settings.h"
#include "runtime/bounded_json.h"

namespace jforge {

namespace {

using Words = std::vector<std::pair<std::string, std::string>>;  // with descriptions

Words key_words(const CLI::App& command, bool values, const std::string& typed) {
  Words words;
  const std::string& name = command.get_name();
  // Round 1 stands for the typed round in the list of keys.
  const std::string round = typed.substr(0, typed.find_first_not_of("0123456789", 7));
  for (const ConfigField& field : config_fields(name == "pretrain"   ? ConfigFor::pretrain
                                                : name == "finetune" ? ConfigFor::finetune
                                                                     : ConfigFor::run)) {
    std::string path = field.path();
    if (path.starts_with("rounds.1.") && round.starts_with("rounds.") && round.size() > 7) {
      path.replace(0, 8, round);
    }
    if (values && typed.starts_with(path + "=")) {
      const auto schema = parse_bounded_json(field.schema, path);
      const bool flag = schema.value("type", "") == "boolean";
      const nlohmann::json all =
          flag ? nlohmann::json{"true", "false"} : schema.value("enum", nlohmann::json());
      for (const nlohmann::json& word : all) {
        words.emplace_back(path + "=" + word.get<std::string>(), "");
      }
    } else if (values || field.kind == FieldKind::identity) {
      words.emplace_back(path + (values ? "=" : ""), field.meaning);
    }
  }
  return words;
}

// Reads the words and the kind of a value from the type name, such as "auto|never|DIR:CHECK".
Words value_words(const CLI::App& command, const CLI::Option& option, const std::string& typed) {
  Words words;
  const std::string type = option.get_type_name();
  const std::size_t list = option.get_delimiter() == ',' ? typed.rfind(',') + 1 : 0;
  for (const std::string& part : CLI::detail::split(type.substr(0, type.find(':')), '|')) {
    if (part == "KEY" || part == "KEY=VALUE") {
      words = key_words(command, part != "KEY", typed);
    } else if (part == "NAME=VALUE") {
      for (const DecodingKey& key : decoding_keys()) {
        words.emplace_back(std::string(key.name) + "=", key.meaning);
      }
    } else if (part.find_first_of("abcdefghijklmnopqrstuvwxyz") != std::string::npos) {
      words.emplace_back(typed.substr(0, list) + part, "");
    }
  }
  return words;
}

}  // namespace

const std::map<std::string, const char*>& completion_scripts() {
  // bash splits words at = : @ too, and replaces only $2, the last part of the last word. zsh finds
  // an installed script by its first line; the last line registers a sourced one.
  static const std::map<std::string, const char*> scripts{
      {"bash", R"bash(# bash completion for jforge. To try it: source <(jforge completion bash)
_jforge() {
  local words word line=${COMP_LINE:0:COMP_POINT}
  read -ra words <<< "$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  while IFS=$'\t' read -r word _; do
    [[ $word == *= ]] && compopt -o nospace
    COMPREPLY+=("${word#"${words[-1]%"$2"}"}")
  done < <(command "${1/#\~/$HOME}" __complete -- "${words[@]:1}" 2>/dev/null)
}
complete -o default -F _jforge jforge
)bash"},
      {"fish", R"fish(# fish completion for jforge. To try it: jforge completion fish | source
function __jforge_complete
    set -l words (commandline -opc) "$(commandline -ct)"
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l lines (command $program __complete -- $words[2..] 2>/dev/null)
    and set -q lines[1]; and printf '%s\n' $lines; or __fish_complete_suffix ''
end
complete -c jforge -f -k -a '(__jforge_complete)'
)fish"},
      {"zsh", R"zsh(#compdef jforge
# zsh completion for jforge. To try it, after compinit: source <(jforge completion zsh)
_jforge() {
  local line
  local -a typed=("${(@Q)words[2,CURRENT-1]}" "$PREFIX") found suffix
  local -a lines=(${(f)"$(command ${~words[1]} __complete -- "${typed[@]}" 2>/dev/null)"})
  [[ $PREFIX == --*=* ]] && compset -P 1 '*='
  for line in $lines; do
    [[ $line == *=$'\t'* ]] && suffix=(-S '')
    found+=("${${${line%%$'\t'*}#$IPREFIX}//:/\\:}:${line#*$'\t'}")
  done
  found=(${found%:})
  if (( $#found )); then _describe value found "${suffix[@]}"; else _files; fi
}
if [[ $funcstack[1] == _jforge ]]; then _jforge "$@"; else compdef _jforge jforge; fi
)zsh"}};
  return scripts;
}

std::string completion_candidates(const CLI::App& program, std::span<const std::string> given) {
  const CLI::App* command = &program;
  const CLI::Option* option = nullptr;  // Its value is being typed.
  std::size_t argument = 0;
  for (const std::string& word : given.first(given.size() - 1)) {
    const auto sub =
        command->get_subcommands([&](const CLI::App* app) { return app->get_name() == word; });
    if (option != nullptr) {
      option = nullptr;
    } else if (word.starts_with('-')) {
      const CLI::Option* const named = command->get_option_no_throw(word);
      option = named != nullptr && named->get_items_expected_max() > 0 ? named : nullptr;
    } else if (!sub.empty()) {
      command = sub.front();
    } else {
      ++argument;
    }
  }
  std::string typed = given.back();
  std::string before;  // "--set=" in the same word
  const std::size_t equals = typed.find('=');
  if (option == nullptr && typed.starts_with("--") && equals != std::string::npos) {
    option = command->get_option_no_throw(typed.substr(0, equals));
    before = typed.substr(0, option == nullptr ? 0 : equals + 1);
    typed.erase(0, before.size());
  }
  const auto arguments =
      command->get_options([](const CLI::Option* each) { return each->get_positional(); });
  if (option == nullptr && argument < arguments.size() && !typed.starts_with('-')) {
    option = arguments[argument];
  }
  Words words;
  if (option != nullptr) {
    words = value_words(*command, *option, typed);
  } else if (typed.starts_with('-')) {
    for (const CLI::Option* each : command->get_options()) {
      for (const std::string& name : CLI::detail::split(each->get_name(false, true), ',')) {
        words.emplace_back(name, each->get_description());
      }
    }
  } else if (argument == 0) {
    for (const CLI::App* sub : command->get_subcommands(nullptr)) {
      words.emplace_back(sub->get_name(), sub->get_description());
    }
  }
  std::string lines;
  for (const auto& [word, help] : words) {
    lines += word.starts_with(typed) ? fmt::format("{}{}\t{}\n", before, word, help) : "";
  }
  return lines;
}

}  // namespace jforge
