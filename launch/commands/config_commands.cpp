#include <fmt/format.h>

#include <cstdio>

#include "launch/commands/commands.h"
#include "launch/commands/run_directory.h"
#include "launch/config/config_reference.h"
#include "runtime/durable_file.h"

namespace jforge {

ExitCode print_document(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw EnvironmentError("standard output could not be written");
  }
  return ExitCode::ok;
}

ExitCode schema_command(const SchemaOptions& options) {
  return print_document(options.reference ? reference_markdown() : config_schema());
}

ExitCode init_command(const InitOptions& options) {
  const std::string text = commented_config(options.start);
  if (options.config.empty()) {
    return print_document(text);
  }
  expect_toml_name(options.config);
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(options.config, error))) {
    throw ConfigError(options.config.string() +
                      ": exists already; name another file, or remove it first");
  }
  const std::filesystem::path folder = options.config.parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    throw ConfigError(folder.string() + ": no such folder; make it first");
  }
  publish_file(options.config, text);
  fmt::print("{}: edit it, then look at the plan with: jforge run {} --dry-run\n",
             options.config.string(), options.config.string());
  return ExitCode::ok;
}

}  // namespace jforge
