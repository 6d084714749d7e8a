#include <fmt/format.h>

#include "launch/shell/shell_completion_internal.h"

namespace jforge {

namespace {

constexpr const char* kPreface =
    R"fish(# fish completion for jforge, made by `jforge completion fish`.
# To try it: jforge completion fish | source
)fish";

constexpr const char* kMachine = R"fish(
function __jforge_in  # the command typed so far is $argv
    set -l path
    for word in (commandline -opc)[2..]
        contains -- (string join ' ' -- $path $word) $__jforge_commands; and set -a path $word
    end
    test "$path" = "$argv"
end

function __jforge_list  # values separated by commas
    set -l before (string match -r '.*,' -- (commandline -ct) | string replace -r '^--[^=]*=' '')
    printf '%s\n' $before$argv
end

function __jforge_keys  # those of __jforge_keys_NAME, rounds counted as typed, with what follows
    set -l round (string match -r -g '(?:^|=)rounds\.([0-9]+)' -- (commandline -ct))
    test -n "$round"; or set round 1
    $argv[1] | string replace -r '^rounds\.1' rounds.$round | string replace \t $argv[2]\t
end

function __jforge_settings
    set -l typed (commandline -ct | string replace -r '^--[^=]*=' '')
    if not string match -q '*=*' -- $typed
        __jforge_keys $argv[1] =
        return
    end
    set -l key (string replace -r '=.*' '' -- $typed)
    for value in ($argv[1]_values (string replace -r '^rounds\.[0-9]+' rounds.1 -- $key))
        printf '%s=%s\n' $key $value
    end
end
)fish";

// Inside single quotes fish knows two escapes.
std::string fish_quoted(std::string_view text) {
  return "'" + replaced(replaced(std::string(text), "\\", "\\\\"), "'", "\\'") + "'";
}

// The command behind the program's name: "probe logits".
std::string words_of(const CommandDescription& command) {
  const std::string path = path_text(command);
  return path.substr(std::min(path.size(), command.path.front().size() + 1));
}

std::string condition(const CommandDescription& command) {
  return " -n " + fish_quoted(words_of(command).empty() ? "__jforge_in"
                                                        : "__jforge_in " + words_of(command));
}

// What completes a value, as options of `complete`.
std::string value(const CommandDescription& command, const OptionDescription& option) {
  const std::string keys = "__jforge_keys_" + keys_name(command);
  const std::string words = fmt::format("{}", fmt::join(option.words, " "));
  std::string offered = option.list ? "(__jforge_list " + words + ")" : words;
  const auto exclusive = [&](const std::string& more) {
    offered += (offered.empty() || more.empty() ? "" : " ") + more;
    return offered.empty() ? std::string(" -x") : " -x -a " + fish_quoted(offered);
  };
  switch (option.kind) {
    case ValueKind::none:
    case ValueKind::text:
      return exclusive("");
    case ValueKind::config_file:
      return exclusive("(__fish_complete_suffix .toml)");
    case ValueKind::directory:
      return exclusive("(__fish_complete_directories)");
    case ValueKind::file:
    case ValueKind::path:
      return " -r -F" + (offered.empty() ? "" : " -a " + fish_quoted(offered));
    case ValueKind::setting:
      return exclusive("(__jforge_settings " + keys + ")");
    case ValueKind::decoding_setting:
      return exclusive(std::string("(__jforge_settings __jforge_keys_") + kDecoding + ")");
    case ValueKind::key:
      return exclusive("(__jforge_keys " + keys + "_identity '')");
  }
  return "";
}

std::string describe_in_fish(const CommandDescription& command) {
  const std::string start = "complete -c jforge" + condition(command);
  std::string text = fmt::format("\n# {}\n", path_text(command));
  for (const CommandDescription& sub : command.commands) {
    text += fmt::format("{} -a {} -d {}\n", start, sub.name(), fish_quoted(sub.help));
  }
  for (const OptionDescription& option : command.options) {
    text += start;
    for (const std::string& name : option.names) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    text += option.takes_value() ? value(command, option) : "";
    text += " -d " + fish_quoted(option.help) + "\n";
  }
  for (const OptionDescription& argument : command.arguments) {
    // -x and -r are of options.
    std::string what = value(command, argument);
    what = replaced(replaced(what, " -x", ""), " -r", "");
    text += what.empty() ? "" : start + what + "\n";
  }
  return text;
}

std::string keys_functions() {
  std::string text;
  for (const NamedKeys& config : named_keys()) {
    std::string all;
    std::string identity;
    std::string values;
    bool rounds = false;
    for (const ConfigKey& key : config.keys) {
      const std::string line = " \\\n        " + fish_quoted(key.path + "\t" + short_meaning(key));
      all += line;
      identity += key.identity ? line : "";
      rounds = rounds || key.path.starts_with("rounds.1.");
      if (!key.words.empty()) {
        values += fmt::format("        case {}\n            printf '%s\\n' {}\n", key.path,
                              fmt::join(key.words, " "));
      }
    }
    // A whole round's keys may be accepted together.
    identity += rounds ? " \\\n        " + fish_quoted("rounds.1\tAll keys of this round") : "";
    text += fmt::format(
        "\nfunction __jforge_keys_{0}\n    printf '%s\\n'{1}\nend\n"
        "\nfunction __jforge_keys_{0}_identity\n    printf '%s\\n'{2}\nend\n"
        "\nfunction __jforge_keys_{0}_values\n    switch $argv[1]\n{3}    end\nend\n",
        config.name, all, identity, values);
  }
  return text;
}

}  // namespace

std::string fish_completion(const CommandDescription& program) {
  std::string text = kPreface;
  text += "\nset -g __jforge_commands";
  for (const CommandDescription* command : all_commands(program)) {
    text += command->path.size() == 1 ? "" : " " + fish_quoted(words_of(*command));
  }
  text += "\n" + std::string(kMachine) + keys_functions() + "\ncomplete -c jforge -f\n";
  for (const CommandDescription* command : all_commands(program)) {
    text += describe_in_fish(*command);
  }
  return text;
}

}  // namespace jforge
