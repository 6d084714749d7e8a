#include "runtime/contained_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ContainedFileTest : public ::testing::Test {
 protected:
  ContainedFileTest() : root_(fs::canonical(scratch_.path())), model_(root_ / "model") {
    fs::create_directories(model_);
    std::ofstream(root_ / "secret") << "outside";
    std::ofstream(model_ / "config.json") << "inside";
  }

  static std::string refusal(const fs::path& directory, const std::string& name) {
    try {
      static_cast<void>(contained_file(directory, name));
    } catch (const DataError& error) {
      EXPECT_THROW((void)holds_contained_file(directory, name), DataError);
      return error.what();
    }
    return "accepted";
  }

  test::TemporaryDirectory scratch_;
  fs::path root_;
  fs::path model_;
};

TEST_F(ContainedFileTest, PlainAndAbsentFilesPass) {
  EXPECT_EQ(contained_file(model_, "config.json"), model_ / "config.json");
  EXPECT_TRUE(holds_contained_file(model_, "config.json"));
  EXPECT_EQ(contained_file(model_, "absent.json"), model_ / "absent.json");
  EXPECT_FALSE(holds_contained_file(model_, "absent.json"));
  EXPECT_FALSE(holds_contained_file(root_ / "no-directory", "config.json"));
}

TEST_F(ContainedFileTest, LinksStayInTheDirectory) {
  fs::create_symlink("config.json", model_ / "beside");
  fs::create_symlink(model_ / "config.json", model_ / "absolute");
  fs::create_symlink("../secret", model_ / "relative_out");
  fs::create_symlink(root_ / "secret", model_ / "absolute_out");
  fs::create_symlink("relative_out", model_ / "through_another");
  fs::create_symlink("nothing", model_ / "dangling");
  fs::create_symlink("loop", model_ / "loop");
  // Not the same directory.
  fs::create_directories(root_ / "model-2");
  std::ofstream(root_ / "model-2" / "x") << "other";
  fs::create_symlink("../model-2/x", model_ / "namesake");
  EXPECT_EQ(refusal(model_, "beside"), "accepted");
  EXPECT_EQ(refusal(model_, "absolute"), "accepted");
  for (const char* name : {"relative_out", "absolute_out", "through_another", "namesake"}) {
    EXPECT_THAT(refusal(model_, name), AllOf(HasSubstr((model_ / name).string()),
                                             HasSubstr("a link out of its directory, to ")));
  }
  EXPECT_THAT(refusal(model_, "dangling"), HasSubstr("leads nowhere (No such file"));
  EXPECT_THAT(refusal(model_, "loop"), HasSubstr("leads nowhere (Too many levels"));
  fs::create_directory_symlink(model_, root_ / "alias");
  EXPECT_EQ(refusal(root_ / "alias", "beside"), "accepted");
  EXPECT_THAT(refusal(root_ / "alias", "relative_out"), HasSubstr("link out of its directory"));
}

TEST_F(ContainedFileTest, TheHubsCacheIsMadeOfLinks) {
  const fs::path repository = root_ / "models--Org--Name";
  const fs::path snapshot = repository / "snapshots" / "0123abcd";
  fs::create_directories(snapshot);
  fs::create_directories(repository / "blobs");
  std::ofstream(repository / "blobs" / "9f8e") << "weights";
  fs::create_symlink("../../blobs/9f8e", snapshot / "model.safetensors");
  fs::create_symlink("../../../secret", snapshot / "config.json");
  EXPECT_EQ(refusal(snapshot, "model.safetensors"), "accepted");
  EXPECT_EQ(read_file(contained_file(snapshot, "model.safetensors")), "weights");
  EXPECT_THAT(refusal(snapshot, "config.json"), HasSubstr("a link out of its directory"));
  const fs::path other = repository / "elsewhere" / "0123abcd";
  fs::create_directories(other);
  fs::create_symlink("../../blobs/9f8e", other / "model.safetensors");
  EXPECT_THAT(refusal(other, "model.safetensors"), HasSubstr("a link out of its directory"));
}

TEST_F(ContainedFileTest, WhatIsNoFileIsRefusedWithoutBlocking) {
  fs::create_directory(model_ / "directory");
  ASSERT_EQ(::mkfifo((model_ / "fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", model_ / "link_to_fifo");
  EXPECT_THAT(refusal(model_, "directory"),
              AllOf(HasSubstr((model_ / "directory").string()), HasSubstr("is a directory")));
  EXPECT_THAT(refusal(model_, "fifo"), HasSubstr("fifo: is a FIFO"));
  EXPECT_THAT(refusal(model_, "link_to_fifo"), HasSubstr("is a FIFO"));
  EXPECT_THAT(refusal("/dev", "zero"), HasSubstr("is a device"));
  // Each would wait forever.
  EXPECT_THROW((void)read_file(model_ / "fifo"), DataError);
  EXPECT_THROW((void)hash_file(model_ / "fifo"), DataError);
  EXPECT_THROW((void)open_input(model_ / "fifo"), DataError);
  EXPECT_THROW(await_file(model_ / "fifo", 0), DataError);
  EXPECT_THROW((void)read_file("/dev/zero"), DataError);
  EXPECT_THROW((void)read_file(model_), DataError);
}

}  // namespace
}  // namespace jforge
