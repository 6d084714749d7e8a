#include "launch/shell/shell_completion.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "launch/config/config_reference.h"
#include "model/decoding/decoding_settings.h"

namespace jforge {

namespace {

/// Collects candidates that continue `typed`.
struct Answer {
  std::string typed;
  std::string before;  ///< Prefix in the same word: "--set=", or nothing.
  std::string lines;

  void offer(const std::string& word, const std::string& help = "") {
    lines += word.starts_with(typed) ? before + word + "\t" + help + "\n" : "";
  }
};

// Returns null if the option takes no value.
const OptionDescription* option_with_value(const CommandDescription& command,
                                           std::string_view name) {
  const auto found = std::ranges::find_if(command.options, [&](const OptionDescription& option) {
    return option.takes_value() && std::ranges::find(option.names, name) != option.names.end();
  });
  return found == command.options.end() ? nullptr : &*found;
}

std::vector<ConfigKey> keys_for(const CommandDescription& command, ValueKind kind) {
  std::vector<ConfigKey> keys;
  if (kind == ValueKind::decoding_setting) {
    for (const DecodingKey& key : decoding_keys()) {
      keys.push_back({key.name, /*identity=*/false, key.meaning, {}});
    }
    return keys;
  }
  if (command.name() == "pretrain" || command.name() == "finetune") {
    return config_keys(command.name() == "pretrain" ? ConfigFor::pretrain : ConfigFor::finetune);
  }
  keys = config_keys(ConfigFor::run);
  if (kind == ValueKind::key) {
    keys.push_back({"rounds.1", /*identity=*/true, "All keys of this round", {}});
  }
  return keys;
}

void offer_keys(const CommandDescription& command, ValueKind kind, Answer& answer) {
  // Round 1 stands for the typed round in the list of keys.
  constexpr std::string_view kRounds = "rounds.";
  const std::string& typed = answer.typed;
  const std::string round = typed.substr(0, typed.find_first_not_of("0123456789", kRounds.size()));
  for (ConfigKey& key : keys_for(command, kind)) {
    if (key.path.starts_with("rounds.1") && round.starts_with(kRounds) && round != kRounds) {
      key.path = round + key.path.substr(kRounds.size() + 1);
    }
    // The first sentence after any "Required.", without Markdown.
    std::string meaning = key.meaning.substr(0, key.meaning.find(". ", 10));
    std::erase(meaning, '`');
    if (kind == ValueKind::key) {
      if (key.identity) {
        answer.offer(key.path, meaning);
      }
    } else if (typed.starts_with(key.path + "=")) {
      for (const std::string& word : key.words) {
        answer.offer(key.path + "=" + word);
      }
    } else {
      answer.offer(key.path + "=", meaning);
    }
  }
}

void offer_values(const CommandDescription& command, const OptionDescription& option,
                  Answer& answer) {
  const std::size_t list = option.list ? answer.typed.rfind(',') + 1 : 0;
  for (const std::string& word : option.words) {
    answer.offer(answer.typed.substr(0, list) + word);
  }
  using enum ValueKind;
  static const std::map<ValueKind, const char*> files{
      {config_file, ":toml\n"}, {file, ":file\n"}, {directory, ":dir\n"}};
  if (const auto found = files.find(option.kind); found != files.end()) {
    answer.lines += found->second;
  } else if (option.kind != none && option.kind != text) {
    offer_keys(command, option.kind, answer);
  }
}

void offer_words(const CommandDescription& command, std::size_t argument, Answer& answer) {
  if (answer.typed.starts_with('-')) {
    for (const OptionDescription& option : command.options) {
      for (const std::string& name : option.names) {
        answer.offer(name, option.help);
      }
    }
  } else if (argument < command.arguments.size()) {
    offer_values(command, command.arguments[argument], answer);
  } else if (argument == 0) {
    for (const CommandDescription& sub : command.commands) {
      answer.offer(sub.name(), sub.help);
    }
  }
}

}  // namespace

std::string completion_candidates(const CommandDescription& program,
                                  std::span<const std::string> words) {
  if (words.empty()) {
    return "";
  }
  const CommandDescription* command = &program;
  const OptionDescription* option = nullptr;
  std::size_t argument = 0;
  for (const std::string& word : words.first(words.size() - 1)) {
    const auto sub = std::ranges::find(command->commands, word, &CommandDescription::name);
    if (option != nullptr) {
      option = nullptr;
    } else if (word.starts_with('-')) {
      option = option_with_value(*command, word);
    } else if (sub != command->commands.end()) {
      command = &*sub;
    } else {
      ++argument;
    }
  }
  Answer answer{words.back(), "", ""};
  const std::size_t equals = answer.typed.find('=');
  if (option == nullptr && answer.typed.starts_with("--") && equals != std::string::npos) {
    option = option_with_value(*command, answer.typed.substr(0, equals));
    if (option != nullptr) {
      answer.before = answer.typed.substr(0, equals + 1);
      answer.typed.erase(0, equals + 1);
    }
  }
  if (option != nullptr) {
    offer_values(*command, *option, answer);
  } else {
    offer_words(*command, argument, answer);
  }
  return answer.lines;
}

}  // namespace jforge
