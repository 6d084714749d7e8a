#include "workers/evaluate/sandbox/grading_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>

#include "runtime/error.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::SizeIs;

class NoRunner final : public CodeRunner {
 public:
  CodeRunResult run(const CodeRunRequest&, const CodeValueSink&) override { return {}; }
};

class FakeTask final : public Task {
 public:
  using Grade = std::function<Verdict(const std::string& answer)>;
  FakeTask(bool code, Grade grade) : code_(code), grade_(std::move(grade)) {}
  std::string name() const override { return "fake"; }
  std::string version() const override { return "fake/1"; }
  std::vector<TaskRecord> load(const std::filesystem::path&) const override { return {}; }
  TaskPrompt prompt(const TaskRecord&) const override { return {}; }
  std::int64_t default_max_new_tokens() const override { return 1; }
  std::vector<std::string> stop_texts() const override { return {}; }
  std::optional<std::string> extract(std::string_view, const TaskRecord&) const override {
    return {};
  }
  bool runs_code() const override { return code_; }
  Verdict grade(const std::optional<std::string>& answer, const TaskRecord&,
                CodeRunner* runner) const override {
    EXPECT_EQ(runner != nullptr, code_);
    return grade_(*answer);
  }

 private:
  bool code_;
  Grade grade_;
};

Verdict passed(const std::string& answer) { return {VerdictStatus::pass, "", answer}; }

std::map<std::int64_t, VerdictStatus> by_ticket(const std::vector<GradedAnswer>& graded) {
  std::map<std::int64_t, VerdictStatus> result;
  for (const GradedAnswer& one : graded) {
    EXPECT_TRUE(result.emplace(one.ticket, one.verdict.status).second) << one.ticket;
  }
  return result;
}

TEST(GradingPool, EveryAnswerComesOutOnce) {
  NoRunner runner;
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  const FakeTask task(true, [&](const std::string& answer) {
    const int now = ++running;
    int seen = most;
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::sleep_for(1ms);
    --running;
    return Verdict{answer == "odd" ? VerdictStatus::fail : VerdictStatus::pass, "", answer};
  });
  GradingPool pool(&runner, 3);
  const TaskRecord record;
  std::vector<GradedAnswer> graded;
  for (std::int64_t ticket = 0; ticket < 100; ++ticket) {
    pool.submit(ticket, task, ticket % 2 == 1 ? "odd" : "even", record);
    for (GradedAnswer& one : pool.take()) {
      graded.push_back(std::move(one));
    }
  }
  for (GradedAnswer& one : pool.drain()) {
    graded.push_back(std::move(one));
  }
  const auto verdicts = by_ticket(graded);
  ASSERT_THAT(verdicts, SizeIs(100));
  for (const auto& [ticket, status] : verdicts) {
    EXPECT_EQ(status, ticket % 2 == 1 ? VerdictStatus::fail : VerdictStatus::pass);
  }
  EXPECT_LE(most, 3);
  EXPECT_TRUE(pool.drain().empty());
}

TEST(GradingPool, TimeOutsAreTriedAgainAlone) {
  NoRunner runner;
  std::atomic<int> running = 0;
  std::map<std::string, int> tries;
  std::mutex mutex;
  std::atomic<int> disturbed = 0;
  const FakeTask task(true, [&](const std::string& answer) {
    int attempt = 0;
    {
      const std::lock_guard lock(mutex);
      attempt = ++tries[answer];
    }
    ++running;
    for (int step = 0; step < 10; ++step) {
      std::this_thread::sleep_for(1ms);
      disturbed += attempt > 1 && running > 1 ? 1 : 0;
    }
    --running;
    if (answer == "slow" || (answer == "unlucky" && attempt == 1)) {
      return Verdict{VerdictStatus::timeout, "out of time", answer};
    }
    return passed(answer);
  });
  GradingPool pool(&runner, 4);
  const TaskRecord record;
  const std::vector<std::string> answers{"slow", "a", "unlucky", "b", "c", "d", "e", "g"};
  for (std::size_t ticket = 0; ticket < answers.size(); ++ticket) {
    pool.submit(static_cast<std::int64_t>(ticket), task, answers[ticket], record);
  }
  const auto verdicts = by_ticket(pool.drain());
  ASSERT_THAT(verdicts, SizeIs(answers.size()));
  EXPECT_EQ(verdicts.at(0), VerdictStatus::timeout);
  EXPECT_EQ(verdicts.at(2), VerdictStatus::pass);
  EXPECT_EQ(tries["slow"], 2);
  EXPECT_EQ(tries["unlucky"], 2);
  EXPECT_EQ(tries["a"], 1);
  EXPECT_EQ(disturbed, 0);
}

TEST(GradingPool, ATimeOutOfTheBaseTestsAloneCountsAsOne) {
  NoRunner runner;
  std::atomic<int> tries = 0;
  const FakeTask task(true, [&](const std::string& answer) {
    ++tries;
    Verdict verdict{VerdictStatus::fail, "", answer};
    verdict.base_status = VerdictStatus::timeout;
    return verdict;
  });
  GradingPool pool(&runner, 1);
  pool.submit(0, task, "x", {});
  EXPECT_THAT(pool.drain(), SizeIs(1));
  EXPECT_EQ(tries, 2);
}

TEST(GradingPool, OtherTasksAreGradedAtOnceAndNeedNoRunner) {
  const std::thread::id caller = std::this_thread::get_id();
  const FakeTask task(false, [&](const std::string& answer) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    return passed(answer);
  });
  GradingPool pool(nullptr, 2);
  pool.submit(7, task, "x", {});
  EXPECT_EQ(by_ticket(pool.take()),
            (std::map<std::int64_t, VerdictStatus>{{7, VerdictStatus::pass}}));
  const FakeTask code(true, passed);
  EXPECT_THROW(pool.submit(8, code, "x", {}), InternalError);
}

TEST(GradingPool, ErrorsReachTheCaller) {
  NoRunner runner;
  const FakeTask task(true, [](const std::string& answer) -> Verdict {
    if (answer == "bad") {
      throw EnvironmentError("no memory for a process");
    }
    return passed(answer);
  });
  GradingPool pool(&runner, 2);
  pool.submit(0, task, "bad", {});
  EXPECT_THROW((void)pool.drain(), EnvironmentError);
  EXPECT_THROW((void)pool.take(), EnvironmentError);
  EXPECT_THROW(pool.submit(1, task, "good", {}), EnvironmentError);
}

TEST(GradingPool, AFullQueueHoldsTheCallerBack) {
  NoRunner runner;
  std::atomic<bool> open = false;
  const FakeTask task(true, [&](const std::string& answer) {
    while (!open) {
      std::this_thread::sleep_for(1ms);
    }
    return passed(answer);
  });
  GradingPool pool(&runner, 1);
  std::atomic<int> handed = 0;
  const TaskRecord record;
  std::thread caller([&] {
    for (int ticket = 0; ticket < 20; ++ticket) {
      pool.submit(ticket, task, "x", record);
      ++handed;
    }
  });
  std::this_thread::sleep_for(100ms);
  EXPECT_LE(handed, 5);  // one runs, four wait
  open = true;
  caller.join();
  EXPECT_THAT(pool.drain(), SizeIs(20));
}

TEST(GradingPool, EndingItDropsWhatHasNotBegun) {
  NoRunner runner;
  std::atomic<int> graded = 0;
  std::atomic<const GradingPool*> filled = nullptr;
  {
    const FakeTask task(true, [&](const std::string& answer) {
      const GradingPool* pool = nullptr;  // While its only thread is in here, the pool stays full.
      while ((pool = filled) == nullptr || pool->full()) {
        std::this_thread::sleep_for(1ms);
      }
      ++graded;
      return passed(answer);
    });
    GradingPool pool(&runner, 1);
    const TaskRecord record;
    for (int ticket = 0; ticket < 5; ++ticket) {
      pool.submit(ticket, task, "x", record);
    }
    EXPECT_TRUE(pool.full());
    filled = &pool;
  }
  EXPECT_EQ(graded, 1);
}

TEST(GradingPool, AnInterruptedRunnerEndsItWithoutAVerdict) {
  NoRunner runner;
  const FakeTask task(true, [](const std::string& answer) -> Verdict {
    if (answer == "ended") {
      throw Interrupted("a stop was asked for");
    }
    return passed(answer);
  });
  GradingPool pool(&runner, 1);
  const TaskRecord record;
  pool.submit(0, task, "x", record);
  pool.submit(1, task, "ended", record);
  const auto verdicts = by_ticket(pool.drain());
  EXPECT_EQ(verdicts, (std::map<std::int64_t, VerdictStatus>{{0, VerdictStatus::pass}}));
  for (std::int64_t ticket = 2; ticket < 20; ++ticket) {
    pool.submit(ticket, task, "x", record);
  }
  EXPECT_FALSE(pool.full());
  EXPECT_THAT(pool.drain(), SizeIs(0));
}

TEST(GradingPool, EveryTryIsASignOfLife) {
  NoRunner runner;
  std::atomic<bool> open = false;
  const FakeTask task(true, [&](const std::string& answer) {
    while (!open) {
      std::this_thread::sleep_for(1ms);
    }
    return Verdict{VerdictStatus::timeout, "out of time", answer};
  });
  GradingPool pool(&runner, 1);
  const TaskRecord record;
  EXPECT_EQ(pool.signs_of_life(), 0U);
  for (std::int64_t ticket = 0; ticket < 5; ++ticket) {
    pool.submit(ticket, task, "x", record);
  }
  EXPECT_TRUE(pool.full());  // one runs, four wait
  open = true;
  EXPECT_THAT(pool.drain(), SizeIs(5));
  EXPECT_EQ(pool.signs_of_life(), 10U);
}

TEST(GradingPool, PoolsThatShareTurnsShareTheMachine) {
  const test::TemporaryDirectory directory;
  constexpr int kSlots = 3;
  const HostTurns first(directory / "turns", kSlots);
  const HostTurns second(directory / "turns", kSlots);
  std::filesystem::remove(directory / "turns");
  NoRunner runner;
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  std::atomic<int> disturbed = 0;
  std::mutex mutex;
  std::map<std::string, int> tries;
  const FakeTask task(true, [&](const std::string& answer) {
    bool retried = false;
    {
      const std::lock_guard lock(mutex);
      retried = ++tries[answer] > 1 && answer != "quick";
    }
    ++running;
    for (int step = 0; step < 10; ++step) {
      std::this_thread::sleep_for(1ms);
      const int now = running;
      int seen = most;
      while (seen < now && !most.compare_exchange_weak(seen, now)) {
      }
      disturbed += retried && now > 1 ? 1 : 0;
    }
    --running;
    return answer != "quick" && !retried ? Verdict{VerdictStatus::timeout, "out of time", answer}
                                         : passed(answer);
  });
  const TaskRecord record;
  GradingPool one(&runner, 3, &first);
  GradingPool two(&runner, 3, &second);
  std::thread caller([&] {
    for (int ticket = 0; ticket < 20; ++ticket) {
      two.submit(ticket, task, "quick", record);
    }
  });
  for (int ticket = 0; ticket < 6; ++ticket) {
    one.submit(ticket, task, "slow " + std::to_string(ticket), record);
  }
  EXPECT_THAT(one.drain(), SizeIs(6));
  caller.join();
  EXPECT_THAT(two.drain(), SizeIs(20));
  EXPECT_EQ(tries["slow 0"], 2);
  EXPECT_EQ(disturbed, 0);
  EXPECT_LE(most, kSlots);
  EXPECT_GT(most, 1);
}

TEST(HostTurns, WhoGivesUpHoldsNothing) {
  const test::TemporaryDirectory directory;
  const HostTurns turns(directory / "turns", 1);
  const auto never = [] { return false; };
  const auto at_once = [] { return true; };
  {
    const auto held = turns.wait(false, never);
    ASSERT_TRUE(held);
    EXPECT_FALSE(turns.wait(false, at_once));
    EXPECT_FALSE(turns.wait(true, at_once));
  }
  EXPECT_TRUE(turns.wait(true, never));
  EXPECT_TRUE(turns.wait(false, never));
  EXPECT_THROW(HostTurns(directory / "absent" / "turns", 1), EnvironmentError);
}

TEST(ShareOfCores, IsAtLeastOneAndFallsWithProcesses) {
  EXPECT_GE(share_of_cores(1), 1);
  EXPECT_LE(share_of_cores(1), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(share_of_cores(1 << 20), 1);
}

}  // namespace
}  // namespace jforge
