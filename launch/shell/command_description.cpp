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

/// The kind that a placeholder stands for, and the one form in which documents show it.
struct Placeholder {
  ValueKind kind;
  const char* text;
};

const Placeholder& placeholder(const std::string& type, const std::string& option) {
  static const std::map<std::string, Placeholder> known{
      {"TOML", {ValueKind::config_file, "CONFIG"}},
      {"FILE", {ValueKind::file, "FILE"}},
      {"DIR", {ValueKind::directory, "DIR"}},
      {"PATH", {ValueKind::path, "PATH"}},
      {"KEY=VALUE", {ValueKind::setting, "KEY=VALUE"}},
      {"NAME=VALUE", {ValueKind::decoding_setting, "NAME=VALUE"}},
      {"KEY", {ValueKind::key, "KEY"}},
      {"TASK", {ValueKind::text, "TASK"}},
      {"TEXT", {ValueKind::text, "TEXT"}},
      {"INT", {ValueKind::text, "N"}},
      {"UINT", {ValueKind::text, "N"}},
      {"FLOAT", {ValueKind::text, "X"}},
  };
  const auto found = known.find(type);
  if (found == known.end()) {
    throw InternalError(fmt::format("{}: the type name {} is no known placeholder", option, type));
  }
  return found->second;
}

void describe_value(const CLI::Option& option, OptionDescription& described) {
  // Behind a colon stand the checks: INT:POSITIVE.
  std::string types = option.get_type_name();
  types = types.substr(0, types.find(':'));
  std::istringstream parts(types);
  for (std::string part; std::getline(parts, part, '|');) {
    std::string text = part;
    if (std::ranges::any_of(part, [](char c) { return c >= 'a' && c <= 'z'; })) {
      described.words.push_back(part);
    } else {
      const Placeholder& value = placeholder(part, option.get_name());
      described.kind = value.kind;
      text = value.text;
    }
    if (part == "TASK") {
      described.words = task_names();
    }
    described.placeholder += (described.placeholder.empty() ? "" : "|") + text;
  }
  expect(described.takes_value(), option.get_name() + " takes a value and names no type");
  described.list = option.get_delimiter() == ',';
  described.repeatable = option.get_items_expected_max() > 1;
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

std::string path_text(const CommandDescription& command, const std::string& separator) {
  return fmt::format("{}", fmt::join(command.path, separator));
}

}  // namespace jforge
