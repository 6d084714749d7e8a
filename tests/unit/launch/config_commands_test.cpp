#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "launch/commands/commands.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

TEST(InitCommand, WritesANewFileAndNeverOverAnother) {
  const test::TemporaryDirectory folder;
  InitOptions options;
  options.config = folder / "my.toml";
  options.start.source = "models/mine";
  EXPECT_EQ(init_command(options), ExitCode::ok);
  const std::string written = read_file(options.config);
  EXPECT_NE(written.find("source = 'models/mine'"), std::string::npos) << written;

  options.start.source = "models/other";
  EXPECT_THROW((void)init_command(options), ConfigError);
  EXPECT_EQ(read_file(options.config), written);
  options.config = folder / "absent/my.toml";
  EXPECT_THROW((void)init_command(options), ConfigError);
  for (const char* const name : {"my.yaml", "my.yml", "my.json"}) {
    options.config = folder / name;
    EXPECT_THROW((void)init_command(options), ConfigError);
    EXPECT_FALSE(std::filesystem::exists(options.config));
  }
  std::filesystem::create_symlink(folder / "elsewhere", folder / "link.toml");
  options.config = folder / "link.toml";
  EXPECT_THROW((void)init_command(options), ConfigError);
}

}  // namespace
}  // namespace jforge
