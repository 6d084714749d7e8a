#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "launch/commands/commands.h"
#include "runtime/error.h"

namespace jforge {
namespace {

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(InitCommand, WritesANewFileAndNeverOverAnother) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("jforge-init-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  InitOptions options;
  options.config = folder / "my.toml";
  options.start.source = "models/mine";
  EXPECT_EQ(init_command(options), ExitCode::ok);
  const std::string written = bytes_of(options.config);
  EXPECT_NE(written.find("source = 'models/mine'"), std::string::npos) << written;

  options.start.source = "models/other";
  EXPECT_THROW((void)init_command(options), ConfigError);
  EXPECT_EQ(bytes_of(options.config), written);
  options.config = folder / "absent" / "my.toml";
  EXPECT_THROW((void)init_command(options), ConfigError);
  for (const char* const name : {"my.yaml", "my.yml", "my.json"}) {
    options.config = folder / name;
    EXPECT_THROW((void)init_command(options), ConfigError);
    EXPECT_FALSE(std::filesystem::exists(options.config));
  }
  std::filesystem::create_symlink(folder / "elsewhere", folder / "link.toml");
  options.config = folder / "link.toml";
  EXPECT_THROW((void)init_command(options), ConfigError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace jforge
