#include "data/prompts/file_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "runtime/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class FilePatternsTest : public testing::Test {
 protected:
  void put(const fs::path& name) const {
    fs::create_directories((root() / name).parent_path());
    std::ofstream(root() / name) << "{}\n";
  }
  std::vector<std::string> matched(const std::string& pattern) const {
    std::vector<std::string> names;
    for (const fs::path& path : match_files({(root() / pattern).string()})) {
      names.push_back(path.lexically_relative(root()).string());
      EXPECT_TRUE(path.string().starts_with(root().string() + "/")) << path;
    }
    return names;
  }
  std::string failure(const std::string& pattern) const {
    return test::message_of<DataError>([&] { return matched(pattern); });
  }
  [[nodiscard]] const fs::path& root() const { return directory_.path(); }

 private:
  test::TemporaryDirectory directory_;
};

// Expected: sorted(glob.glob(pattern, recursive=True)) of Python 3.11, without the directories.
TEST_F(FilePatternsTest, TwoStarsAreAnyNumberOfDirectories) {
  for (const char* const name :
       {"d/a.jsonl", "d/b/a.jsonl", "d/b/c/z.jsonl", "d/b/c/note.txt", "d/.hidden/a.jsonl",
        "d/b/.a.jsonl", "d/[x]*/a.jsonl", "e/b/a.jsonl"}) {
    put(name);
  }
  EXPECT_THAT(matched("d/**/*.jsonl"),
              ElementsAre("d/[x]*/a.jsonl", "d/a.jsonl", "d/b/a.jsonl", "d/b/c/z.jsonl"));
  EXPECT_THAT(matched("*/**/b/*.jsonl"), ElementsAre("d/b/a.jsonl", "e/b/a.jsonl"));
  EXPECT_THAT(matched("**/b/**/*.jsonl"),
              ElementsAre("d/b/a.jsonl", "d/b/c/z.jsonl", "e/b/a.jsonl"));
  EXPECT_THAT(matched("d/b/**"), ElementsAre("d/b/a.jsonl", "d/b/c/note.txt", "d/b/c/z.jsonl"));
  EXPECT_THAT(matched("d/**/c/**/z.jsonl"), ElementsAre("d/b/c/z.jsonl"));
  EXPECT_THAT(failure("d/**/*.csv"), HasSubstr("matches no file"));
  EXPECT_THAT(failure("none/**/*.jsonl"), HasSubstr("matches no file"));
}

TEST_F(FilePatternsTest, LinksAreFollowedAndCirclesAreNot) {
  put("d/b/a.jsonl");
  put("other/c.jsonl");
  fs::create_directory_symlink("../..", root() / "d/b/up");
  fs::create_directory_symlink("../other", root() / "d/link");
  EXPECT_THAT(matched("d/**/*.jsonl"), testing::IsSupersetOf({"d/b/a.jsonl", "d/link/c.jsonl"}));
  fs::remove(root() / "d/b/up");
  fs::create_directory_symlink(".", root() / "d/b/self");
  EXPECT_THAT(matched("d/**/*.jsonl"), ElementsAre("d/b/a.jsonl", "d/link/c.jsonl"));
}

TEST_F(FilePatternsTest, ADirectoryIsToldHowItsFilesAreNamed) {
  put("d/e/a.jsonl");
  for (const char* const name : {"d", "d/"}) {
    EXPECT_THAT(failure(name),
                HasSubstr("is a directory; use \"" + (root() / "d").string() + "/*.jsonl\""));
  }
  EXPECT_THAT(failure("d/*"), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace jforge
