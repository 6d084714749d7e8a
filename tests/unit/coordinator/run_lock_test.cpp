#include "coordinator/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/error.h"
#include "runtime/read_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

class RunLockTest : public ::testing::Test {
 protected:
  test::TemporaryDirectory root_;
  const std::filesystem::path directory_ = root_.path();
  RunLock::Timing fast_{0.05, 0.5};
};

TEST_F(RunLockTest, IsReleasedAndCanBeTakenAgain) {
  { RunLock lock(directory_, fast_); }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "lock"));
  RunLock again(directory_, fast_);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "lock"));
}

TEST_F(RunLockTest, ALiveHolderIsNamed) {
  RunLock holder(directory_, fast_);
  EXPECT_THAT(test::message_of<EnvironmentError>([&] {
                RunLock second(directory_, RunLock::Timing{0.05, 60});
              }),
              ::testing::HasSubstr("pid " + std::to_string(::getpid())))
      << "two owners";
  EXPECT_TRUE(std::filesystem::exists(directory_ / "lock"));
}

TEST_F(RunLockTest, WhoOnlyLooksIsToldWhyNoJobHoldsIt) {
  EXPECT_EQ(why_lock_is_dead(directory_), "no job holds its lock");
  {
    RunLock lock(directory_, RunLock::Timing{100, 1000});
    EXPECT_EQ(why_lock_is_dead(directory_), "");
    std::filesystem::last_write_time(
        directory_ / "lock",
        std::filesystem::file_time_type::clock::now() - std::chrono::seconds(300));
    EXPECT_THAT(why_lock_is_dead(directory_), testing::MatchesRegex("no sign of life for 30. s"));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    (void)new RunLock(directory_, RunLock::Timing{100, 1000});
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(why_lock_is_dead(directory_), "its process " + std::to_string(child) + " is gone");
  EXPECT_TRUE(std::filesystem::exists(directory_ / "lock"));
}

TEST_F(RunLockTest, ADeadHolderOfThisHostIsTakenOverAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto* leaked = new RunLock(directory_, RunLock::Timing{0.05, 1000});
    (void)leaked;
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(std::filesystem::exists(directory_ / "lock"));
  RunLock lock(directory_, RunLock::Timing{0.05, 1000});
}

TEST_F(RunLockTest, AnEarlierStartOfTheSameSlurmJobIsTakenOverAtOnce) {
  const auto second_start = [&](const char* job, const char* restart) {
    ::setenv("SLURM_JOB_ID", "71", 1);
    ::setenv("SLURM_RESTART_COUNT", "9", 1);
    std::atomic<bool> lost = false;
    RunLock first(directory_, RunLock::Timing{0.05, 60}, [&](const std::string&) { lost = true; });
    ::setenv("SLURM_JOB_ID", job, 1);
    ::setenv("SLURM_RESTART_COUNT", restart, 1);
    const std::string refusal = test::message_of<EnvironmentError>([&] {
      const RunLock second(directory_, RunLock::Timing{0.05, 60});
      for (int i = 0; i < 100 && !lost; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      EXPECT_TRUE(lost) << "the suspended start goes on";
    });
    ::unsetenv("SLURM_JOB_ID");
    ::unsetenv("SLURM_RESTART_COUNT");
    return refusal;
  };
  EXPECT_EQ(second_start("71", "10"), "nothing thrown");
  EXPECT_THAT(second_start("71", "9"), ::testing::HasSubstr("job 71"));
  EXPECT_THAT(second_start("72", "10"), ::testing::HasSubstr("job 71"));
}

TEST_F(RunLockTest, AnUnchangingLockOfAnotherHostIsStaleAfterTheWait) {
  std::ofstream(directory_ / "lock")
      << R"({"host":"elsewhere","pid":1,"job":"7","identity":"x","counter":3})";
  RunLock lock(directory_, fast_);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "lock"));
}

TEST_F(RunLockTest, ALockThatChangesWhileWeWaitIsAlive) {
  const auto write = [&](int counter) {
    std::ofstream(directory_ / "lock")
        << R"({"host":"elsewhere","pid":1,"job":"7","identity":"x","counter":)" << counter << "}";
  };
  write(1);
  std::atomic<bool> over = false;
  std::thread holder([&] {
    for (int counter = 2; !over; ++counter) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      write(counter);
    }
  });
  EXPECT_THROW(RunLock(directory_, RunLock::Timing{0.05, 60}), EnvironmentError);
  over = true;
  holder.join();
}

TEST_F(RunLockTest, ARefreshSeenHalfWrittenStillNamesItsHolder) {
  const auto write = [&](const std::string& text) { std::ofstream(directory_ / "lock") << text; };
  const auto whole = [](int counter) {
    return R"({"host":"elsewhere","pid":1,"job":"7","identity":"x","counter":)" +
           std::to_string(counter) + "}";
  };
  write(whole(1));
  std::atomic<bool> over = false;
  std::thread holder([&] {
    for (int counter = 2; !over; ++counter) {
      for (const std::string& text :
           {std::string(), whole(counter).substr(0, 14), whole(counter)}) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        write(text);
      }
    }
  });
  EXPECT_THAT(test::message_of<EnvironmentError>([&] {
                const RunLock lock(directory_, RunLock::Timing{0.05, 60});
              }),
              ::testing::HasSubstr("host elsewhere, pid 1, job 7"))
      << "two owners";
  over = true;
  holder.join();
}

TEST_F(RunLockTest, AHolderThatWakesUpTooLateIsToldOfItsSuccessor) {
  std::promise<std::string> told;
  // Refreshes too late, so the second owner takes it for dead.
  const RunLock suspended(directory_, RunLock::Timing{5, 60},
                          [&](const std::string& reason) { told.set_value(reason); });
  const RunLock second(directory_, RunLock::Timing{0.05, 0.3}, [](const std::string& reason) {
    ADD_FAILURE() << "the second owner lost it: " << reason;
  });
  auto reason = told.get_future();
  ASSERT_EQ(reason.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_NE(reason.get().find("pid " + std::to_string(::getpid())), std::string::npos);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

TEST_F(RunLockTest, AHolderWhoseLockWasRemovedIsTold) {
  std::promise<std::string> told;
  const RunLock lock(directory_, fast_, [&](const std::string& reason) { told.set_value(reason); });
  std::filesystem::remove(directory_ / "lock");
  auto reason = told.get_future();
  ASSERT_EQ(reason.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_NE(reason.get().find("gone"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "lock"));
}

TEST_F(RunLockTest, ALostLockEndsTheJobByDefault) {
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(directory_, fast_);
    std::ofstream(directory_ / "lock")
        << R"({"host":"elsewhere","pid":1,"job":"7","identity":"x","counter":3})";
    std::this_thread::sleep_for(std::chrono::seconds(20));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::environment));
}

TEST_F(RunLockTest, AProcessIdOfAnotherContainerSaysNothing) {
  nlohmann::json holder;
  {
    const RunLock lock(directory_, fast_);
    holder = nlohmann::json::parse(read_file(directory_ / "lock"));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  holder["pid"] = static_cast<long long>(child);
  for (const char* space : {"", "other-boot/4026531836"}) {
    holder["process_space"] = space;
    std::ofstream(directory_ / "lock") << holder.dump();
    const auto start = std::chrono::steady_clock::now();
    { const RunLock lock(directory_, fast_); }
    EXPECT_GE(std::chrono::steady_clock::now() - start,
              std::chrono::duration<double>(fast_.stale_seconds))
        << space;
  }
}

TEST_F(RunLockTest, AnUnwritableDirectoryIsNamed) {
  EXPECT_THROW(RunLock(directory_ / "absent", fast_), EnvironmentError);
}

TEST_F(RunLockTest, AFailedWriteLeavesNoLockBehind) {
  {
    const test::FileSizeLimit none(0);
    EXPECT_THROW(RunLock(directory_, fast_), EnvironmentError);
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "lock"));
  const RunLock next(directory_, fast_);
}

}  // namespace
}  // namespace jforge
