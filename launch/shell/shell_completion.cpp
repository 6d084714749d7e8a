#include "launch/shell/shell_completion.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "launch/shell/shell_completion_internal.h"
#include "runtime/error.h"
#include "workers/evaluate/decoding_settings.h"

namespace jforge {

namespace {

using Writer = std::string (*)(const CommandDescription&);

const std::map<std::string, Writer>& writers() {
  static const std::map<std::string, Writer> known{
      {"bash", bash_completion}, {"fish", fish_completion}, {"zsh", zsh_completion}};
  return known;
}

}  // namespace

std::vector<std::string> completion_shells() {
  std::vector<std::string> shells;
  for (const auto& [shell, writer] : writers()) {
    shells.push_back(shell);
  }
  return shells;
}

std::string completion_script(const std::string& shell, const CommandDescription& program) {
  const auto found = writers().find(shell);
  if (found == writers().end()) {
    throw ConfigError(fmt::format("there is no completion for {}: known are {}", shell,
                                  fmt::join(completion_shells(), ", ")));
  }
  return found->second(program);
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string shell_quoted(std::string_view text) {
  return "'" + replaced(std::string(text), "'", R"('\'')") + "'";
}

std::string short_meaning(const ConfigKey& key) {
  const std::string text = replaced(key.meaning, "`", "");
  // "Required." is no sentence of its own here.
  const std::size_t from = text.starts_with("Required. ") ? std::string("Required. ").size() : 0;
  return text.substr(0, text.find(". ", from));
}

std::vector<NamedKeys> named_keys() {
  std::vector<ConfigKey> decoding;
  for (const DecodingKey& key : decoding_keys()) {
    decoding.push_back({key.name, /*identity=*/false, key.meaning, to_string(key.fallback), {}});
  }
  return {{"run", config_keys(ConfigFor::run)},
          {"pretrain", config_keys(ConfigFor::pretrain)},
          {"finetune", config_keys(ConfigFor::finetune)},
          {kDecoding, std::move(decoding)}};
}

std::string keys_name(const CommandDescription& command) {
  const std::string& name = command.name();
  return name == "pretrain" || name == "finetune" ? name : "run";
}

}  // namespace jforge
