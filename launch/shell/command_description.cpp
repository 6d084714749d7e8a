#include "launch/shell/command_description.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "data/tasks/task.h"
#include "runtime/error.h"

namespace jforge {

namespace {

void describe_value(const CLI::Option& option, OptionDescription& described) {
  using enum ValueKind;
  static const std::map<std::string, ValueKind> kinds{
      {"TOML", config_file}, {"FILE", file},         {"DIR", directory},
      {"PATH", file},        {"KEY=VALUE", setting}, {"NAME=VALUE", decoding_setting},
      {"KEY", key},          {"TASK", text},         {"TEXT", text},
      {"INT", text},         {"UINT", text},         {"FLOAT", text},
      {"K/N", text},         {"TIME", text}};
  // Checks follow a colon: INT:POSITIVE.
  const std::string types = option.get_type_name();
  described.placeholder = types.substr(0, types.find(':'));
  std::istringstream parts(described.placeholder);
  for (std::string part; std::getline(parts, part, '|');) {
    if (std::ranges::any_of(part, [](char c) { return c >= 'a' && c <= 'z'; })) {
      described.words.push_back(part);
    } else {
      expect(kinds.contains(part), option.get_name() + " has the unknown type name " + part);
      described.kind = kinds.at(part);
    }
    if (part == "TASK") {
      described.words = task_names();
    }
  }
  expect(described.takes_value(), option.get_name() + " takes a value and names no type");
  described.list = option.get_delimiter() == ',';
  described.default_text = option.get_default_str();
}

OptionDescription describe(const CLI::Option& option) {
  OptionDescription described;
  for (const std::string& name : option.get_snames()) {
    described.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    described.names.push_back("--" + name);
  }
  if (option.get_positional()) {
    described.names.push_back(option.get_name(true));
  }
  described.help = option.get_description();
  described.required = option.get_required();
  if (option.get_items_expected_max() > 0) {
    describe_value(option, described);
  }
  return described;
}

CommandDescription describe(const CLI::App& app, std::vector<std::string> path) {
  CommandDescription command;
  command.path = std::move(path);
  command.path.push_back(app.get_name());
  command.help = app.get_description();
  command.group = app.get_group();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) {
      (option->get_positional() ? command.arguments : command.options).push_back(describe(*option));
    }
  }
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    command.commands.push_back(describe(*sub, command.path));
  }
  return command;
}

}  // namespace

CommandDescription describe(const CLI::App& app) { return describe(app, {}); }

std::vector<const CommandDescription*> all_commands(const CommandDescription& command) {
  std::vector<const CommandDescription*> all{&command};
  for (const CommandDescription& sub : command.commands) {
    const std::vector<const CommandDescription*> below = all_commands(sub);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::string path_text(const CommandDescription& command) {
  return fmt::format("{}", fmt::join(command.path, " "));
}

}  // namespace jforge
