#include "runtime/durable_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/content_hash.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

class DurableFile : public ::testing::Test {
 protected:
  void TearDown() override { arm_faults("", 0); }
  test::TemporaryDirectory directory_;
};

TEST_F(DurableFile, PublishedBytesReadBackExactly) {
  for (const std::size_t size : {0, 1, 2, 4097, 3'000'001}) {
    std::string bytes(size, 'a');
    for (std::size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<char>(i * 131 % 251);
    }
    publish_file(directory_ / "file", bytes);
    EXPECT_EQ(read_file(directory_ / "file"), bytes);
  }
  EXPECT_THAT(names_in(directory_.path()), ::testing::ElementsAre("file"));
}

// Not a hang (phase_clock.h).
TEST_F(DurableFile, ReadingAndWritingShowProgressAllTheTime) {
  PhaseClock clock;
  clock.follow_this_thread();
  const auto signs_of = [&](const std::function<void()>& work) {
    const std::uint64_t before = clock.read().progress;
    work();
    return clock.read().progress - before;
  };
  const auto path = directory_.path() / "large";
  EXPECT_GE(signs_of([&] { publish_file(path, std::string(5 << 20, 'x')); }), 4U)
      << "two writes and two fsyncs";
  EXPECT_GE(signs_of([&] { static_cast<void>(hash_file(path)); }), 5U) << "every megabyte";
  EXPECT_GE(signs_of([&] { static_cast<void>(read_file(path)); }), 5U);
}

TEST_F(DurableFile, AReplacedFileIsTheOldOrTheNewOne) {
  const auto path = directory_.path() / "run.json";
  replace_file(path, "first");
  replace_file(path, "second");
  EXPECT_EQ(read_file(path), "second");
  {
    const test::FileSizeLimit full(2);
    EXPECT_THROW(replace_file(path, "third"), EnvironmentError);
  }
  EXPECT_EQ(read_file(path), "second");
  EXPECT_THAT(names_in(directory_.path()), ::testing::ElementsAre("run.json"));
}

TEST_F(DurableFile, FullDiskKeepsTheOldFileAndLeavesNoTemporary) {
  publish_file(directory_ / "file", "old");
  const std::string message = test::message_of<EnvironmentError>([&] {
    const test::FileSizeLimit limit(4096);
    publish_file(directory_ / "file", std::string(20'000, 'x'));
  });
  EXPECT_THAT(message, HasSubstr("disk full"));
  EXPECT_THAT(message, HasSubstr((directory_ / "file").string()));
  EXPECT_EQ(read_file(directory_ / "file"), "old");
  EXPECT_THAT(names_in(directory_.path()), ::testing::ElementsAre("file"));
}

TEST_F(DurableFile, AThrowAtEachStageBeforeTheRenameKeepsTheOldFile) {
  for (const char* stage : {"publish.data", "publish.fsync", "publish.rename"}) {
    publish_file(directory_ / "file", "old");
    arm_faults("throw@" + std::string(stage) + ":0:1", 0);
    EXPECT_THROW(publish_file(directory_ / "file", "new content"), InternalError) << stage;
    EXPECT_EQ(read_file(directory_ / "file"), "old") << stage;
    arm_faults("throw@" + std::string(stage) + ":0:1", 0);
    EXPECT_THROW(
        publish_with(directory_ / "file", [](const auto& path) { std::ofstream(path) << "new"; }),
        InternalError)
        << stage;
    EXPECT_EQ(read_file(directory_ / "file"), "old") << stage;
    EXPECT_THAT(names_in(directory_.path()), ::testing::ElementsAre("file")) << stage;
  }
}

TEST_F(DurableFile, AKillAtAnyStageLeavesTheOldOrTheNewFileWhole) {
  const std::string fresh(50'000, 'n');
  for (const char* stage :
       {"publish.data", "publish.fsync", "publish.rename", "publish.directory"}) {
    publish_file(directory_ / "file", "old");
    const pid_t child = ::fork();
    if (child == 0) {
      arm_faults("kill@" + std::string(stage) + ":0:1", 0);
      publish_file(directory_ / "file", fresh);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << stage;
    const bool renamed = std::string(stage) == "publish.directory";
    EXPECT_EQ(read_file(directory_ / "file"), renamed ? fresh : "old") << stage;
    EXPECT_EQ(sweep_temporaries(directory_.path()), renamed ? 0U : 1U) << stage;
    EXPECT_THAT(names_in(directory_.path()), ::testing::ElementsAre("file")) << stage;
  }
}

TEST_F(DurableFile, AWriterThatFailsLeavesNoTemporary) {
  EXPECT_THROW(publish_with(directory_ / "file",
                            [](const auto& path) {
                              std::ofstream(path) << "half";
                              throw DataError("writer");
                            }),
               DataError);
  EXPECT_TRUE(names_in(directory_.path()).empty());
  EXPECT_THROW(publish_with(directory_ / "file", [](const auto&) {}), EnvironmentError)
      << "writer wrote nothing";
}

TEST_F(DurableFile, MissingDirectoryAndDirectoryAsTargetAreNamed) {
  EXPECT_THROW(publish_file(directory_ / "absent" / "file", "x"), EnvironmentError);
  make_directory(directory_ / "taken");
  EXPECT_THROW(publish_file(directory_ / "taken", "x"), EnvironmentError);
  EXPECT_THAT(names_in(directory_.path()), ::testing::ElementsAre("taken"));
}

TEST_F(DurableFile, TwoStepCommit) {
  std::ofstream(directory_ / ".tmp-1") << "content";
  sync_file(directory_ / ".tmp-1");
  commit_rename(directory_ / ".tmp-1", directory_ / "final");
  EXPECT_EQ(read_file(directory_ / "final"), "content");
  EXPECT_THROW(commit_rename(directory_ / ".tmp-1", directory_ / "final"), EnvironmentError);
  EXPECT_THROW(sync_file(directory_ / ".tmp-1"), EnvironmentError);
  EXPECT_THROW(sync_directory(directory_ / "final"), EnvironmentError);
}

TEST_F(DurableFile, DirectoriesAreMadeWithParents) {
  make_directory(directory_ / "a" / "b" / "c");
  make_directory(directory_ / "a" / "b" / "c");
  make_directory(directory_ / "a" / "d" / "");
  EXPECT_TRUE(std::filesystem::is_directory(directory_ / "a" / "b" / "c"));
  EXPECT_TRUE(std::filesystem::is_directory(directory_ / "a" / "d"));
  publish_file(directory_ / "file", "x");
  EXPECT_THROW(make_directory(directory_ / "file"), EnvironmentError);
  EXPECT_THROW(make_directory(directory_ / "file" / "below"), EnvironmentError);
}

TEST_F(DurableFile, SweepTakesTemporariesOnly) {
  make_directory(directory_ / "round" / ".tmp-directory");
  publish_file(directory_ / "round" / ".tmp-directory" / "inner", "x");
  publish_file(directory_ / "round" / ".tmp-3-1-0", "x");
  publish_file(directory_ / "round" / "shard.tmp-", "x");
  publish_file(directory_ / ".tmpfile", "x");
  EXPECT_EQ(sweep_temporaries(directory_.path()), 2U);
  EXPECT_THAT(names_in(directory_ / "round"), ::testing::ElementsAre("shard.tmp-"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / ".tmpfile"));
  EXPECT_EQ(sweep_temporaries(directory_ / "absent"), 0U);
}

TEST_F(DurableFile, ReadingNamesWhatIsMissing) {
  EXPECT_THAT(test::message_of<DataError>([&] { return read_file(directory_ / "absent"); }),
              HasSubstr((directory_ / "absent").string()));
  EXPECT_THROW((void)read_file(directory_.path()), DataError);
  EXPECT_THROW((void)hash_file(directory_ / "absent"), DataError);
}

TEST_F(DurableFile, ReadingWaitsForAFileThatAppears) {
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    publish_file(directory_ / "late", "here");
  });
  EXPECT_EQ(read_file(directory_ / "late", 20), "here");
  writer.join();
}

TEST_F(DurableFile, HashesAreXxh3) {
  // From the reference implementation's documentation.
  EXPECT_EQ(hash64(std::string_view{}), 0x2d06800538d394c2U);
  EXPECT_EQ(hash_hex(0x2d06800538d394c2U), "2d06800538d394c2");
  EXPECT_EQ(hash_hex(0xabU), "00000000000000ab");
  const std::string bytes(2'500'000, 'q');
  publish_file(directory_ / "file", bytes);
  EXPECT_EQ(hash_file(directory_ / "file"), hash64(bytes));
  EXPECT_EQ(hash64(std::as_bytes(std::span(bytes)), 9), hash64(std::string_view(bytes), 9));
  EXPECT_NE(hash64(bytes, 9), hash64(bytes));
}

/// As another host would.
class LatePublisher {
 public:
  LatePublisher(std::filesystem::path path, std::chrono::milliseconds delay)
      : thread_([path = std::move(path), delay] {
          std::this_thread::sleep_for(delay);
          publish_file(path, "late");
        }) {}

 private:
  std::jthread thread_;
};

TEST_F(DurableFile, AFileThatAppearsLateIsAwaitedAndRead) {
  const auto path = directory_ / "late";
  const LatePublisher publisher(path, std::chrono::milliseconds(200));
  const auto start = std::chrono::steady_clock::now();
  await_file(path, 20);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(read_file(path), "late");
}

TEST_F(DurableFile, AFileThatNeverAppearsIsADataErrorAfterTheLimit) {
  const auto path = directory_ / "never";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(test::message_of<DataError>([&] { await_file(path, 0.3); }),
              HasSubstr(path.string()));
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, std::chrono::milliseconds(300));
  EXPECT_LT(waited, std::chrono::seconds(10));
}

TEST_F(DurableFile, OnlyAbsenceIsWaitedFor) {
  publish_file(directory_ / "file", "x");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(await_file(directory_ / "file" / "below", 20), DataError);  // ENOTDIR
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST_F(DurableFile, LocalFileSystemsShowFilesAtOnce) {
  struct statfs status {};
  ASSERT_EQ(::statfs("/dev/shm", &status), 0);
  if (status.f_type != 0x01021994) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  EXPECT_EQ(publication_wait_seconds("/dev/shm/file"), 0);
  EXPECT_EQ(publication_wait_seconds("/dev/shm/no-such-directory/below/file"), 0);
  // As of any file system not known to be local.
  EXPECT_EQ(publication_wait_seconds("/proc/file"), kPublicationWaitSeconds);
}

/// A temporary error is not damage.
TEST(ReadFile, OnlyWhatIsNotThereIsMissingData) {
  EXPECT_THROW((void)read_file("/proc/self/absent"), DataError);
  // EIO: no memory is mapped at its beginning.
  EXPECT_EQ(test::message_of<EnvironmentError>([] { return read_file("/proc/self/mem"); }),
            "cannot read /proc/self/mem: Input/output error");
}

TEST(WriteOutput, FollowsLinksAndReplacesNoDevice) {
  const test::TemporaryDirectory directory;
  const auto plain = directory.path() / "plain";
  write_output(plain, "one");
  EXPECT_EQ(read_file(plain), "one");
  const auto link = directory.path() / "link";
  std::filesystem::create_symlink("target", link);
  for (const char* const text : {"two", "three"}) {  // a dangling link, then a valid one
    write_output(link, text);
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_EQ(read_file(directory.path() / "target"), text);
  }
  const auto pipe = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string received;
  std::thread reader([&] {
    std::ifstream stream(pipe);
    received.assign(std::istreambuf_iterator<char>(stream), {});
  });
  write_output(pipe, "four");
  reader.join();
  EXPECT_EQ(received, "four");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  expect_plain_output(plain);
  expect_plain_output(link);
  expect_plain_output(directory.path() / "absent");
  EXPECT_THROW(expect_plain_output(pipe), ConfigError);
  EXPECT_THROW(expect_plain_output(directory.path()), ConfigError);
}

}  // namespace
}  // namespace jforge
