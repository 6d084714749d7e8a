#include <fmt/format.h>

#include <sstream>

#include "launch/commands/commands.h"
#include "launch/config/bounded_toml.h"
#include "results/report/report.h"
#include "runtime/read_file.h"

namespace jforge {

namespace {

// Collects values by dotted key; arrays of tables count from 1 ("rounds.1.steps").
void flatten(const toml::node& node, const std::string& path,
             std::map<std::string, std::string>& values) {
  const auto below = [&](const auto& key) {
    return path.empty() ? fmt::format("{}", key) : fmt::format("{}.{}", path, key);
  };
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, value] : *table) {
      flatten(value, below(key.str()), values);
    }
  } else if (node.is_array_of_tables()) {
    for (std::size_t i = 0; i < node.as_array()->size(); ++i) {
      flatten(*node.as_array()->get(i), below(i + 1), values);
    }
  } else {
    std::ostringstream text;
    node.visit([&](const auto& value) { text << value; });
    values[path] = text.str();
  }
}

// Reads the configuration of a run, or of the run around an evaluation.
ComparedRun compared_run(const std::filesystem::path& directory) {
  ComparedRun run{directory};
  for (const auto& candidate : {directory, std::filesystem::absolute(directory).parent_path()}) {
    const std::filesystem::path path = candidate / "resolved_config.toml";
    if (!std::filesystem::exists(path)) {
      continue;
    }
    try {
      flatten(parse_bounded_toml(read_file(path), path.string()), "", run.configuration);
    } catch (const ConfigError& error) {
      throw DataError(error.what());  // A file of the run, not the user's configuration.
    }
    break;
  }
  return run;
}

}  // namespace

ExitCode compare_command(const std::filesystem::path& first, const std::filesystem::path& second) {
  fmt::print("{}", compare_runs(compared_run(first), compared_run(second)));
  return ExitCode::ok;
}

}  // namespace jforge
